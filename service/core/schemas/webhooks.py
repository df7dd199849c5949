"""Requests and responses about webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints

from service.core.schemas.model_types import RequestModel, ResponseModel

__all__ = [
    "WEBHOOK_EVENTS",
    "DeliveryDetails",
    "DeliveryPage",
    "WebhookDetails",
    "WebhookEvent",
    "WebhookPatch",
    "WebhookSecret",
    "WebhookSpec",
]

WebhookEvent = Literal[
    "task.ready",
    "task.failed",
    "append.ready",
    "append.failed",
    "release.served",
    "alert.raised",
    "alert.cleared",
]
WEBHOOK_EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)

_Url = Annotated[str, StringConstraints(min_length=8, max_length=2000)]
_Events = Annotated[list[WebhookEvent], Field(min_length=1, max_length=len(WEBHOOK_EVENTS))]


class WebhookSpec(RequestModel):
    """An endpoint that receives events."""

    url: _Url = Field(
        description="Public HTTPS address, or one below a prefix of `CINESTRATA_WEBHOOK_TARGETS`.",
        examples=["https://hooks.example.com/cinestrata"],
    )
    events: _Events = Field(
        default_factory=lambda: list(WEBHOOK_EVENTS), description="Events that are sent; default: all."
    )


class WebhookPatch(RequestModel):
    """Changes of a webhook; omitted fields stay."""

    events: _Events | None = None
    enabled: bool | None = Field(
        default=None, description="Whether events are sent. Messages of a disabled webhook wait for 7 days."
    )


class WebhookDetails(ResponseModel):
    """A webhook. Its secret is returned at its creation only."""

    id: str
    url: str = Field(description="Address without its query, which may contain a key.")
    events: list[WebhookEvent]
    enabled: bool
    reason: str | None = Field(
        description="Why the service disabled the webhook (status 410, or a forbidden address); null otherwise."
    )
    created_at: datetime
    pending: int = Field(description="Number of messages that are not delivered yet.")
    failed: int = Field(description="Number of messages of the last 7 days that were given up.")
    last_delivery_at: datetime | None = Field(description="Time of the last delivered message.")


class WebhookSecret(WebhookDetails):
    """A new webhook with its secret."""

    secret: str = Field(
        description="Key of the signatures (`webhook-signature`), as the libraries of Standard Webhooks expect it."
    )


class DeliveryDetails(ResponseModel):
    """A message to an endpoint: pending, delivered or given up."""

    id: int
    message_id: str = Field(description="Value of the header `webhook-id`, the same in all attempts.")
    event: str
    payload: dict[str, Any]
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    next_attempt_at: datetime | None
    status: int | None = Field(description="HTTP status of the last answer; null without one.")
    answer: str | None = Field(
        description="Beginning of the body of the last answer, or the error; untrusted text."
    )
    created_at: datetime
    finished_at: datetime | None


class DeliveryPage(ResponseModel):
    """A page of messages, newest first."""

    deliveries: list[DeliveryDetails]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")
