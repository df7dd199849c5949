"""Requests and responses about webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints

from cinestrata_schemas.model_types import Open, RequestModel, ResponseModel, optional

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
        description="Public HTTPS address, or one below a prefix in `CINESTRATA_WEBHOOK_TARGETS`.",
        examples=["https://hooks.example.com/cinestrata"],
    )
    events: _Events = Field(default_factory=lambda: list(WEBHOOK_EVENTS), description="Default: all.")


class WebhookPatch(RequestModel):
    """Changes to a webhook; omitted fields stay unchanged."""

    events: _Events | None = None
    enabled: bool | None = optional(
        "Whether to send events. If not, new events are dropped, and pending messages wait for up to 7 days."
    )


class WebhookDetails(ResponseModel):
    """A webhook. Its secret is returned only on creation."""

    id: str
    url: str = Field(description="Address without its query, which may contain a key.")
    events: list[Open[WebhookEvent]]
    enabled: bool
    reason: str | None = Field(description="Why the service disabled it: status 410, or a forbidden address.")
    created_at: datetime
    pending: int = Field(description="Number of undelivered messages.")
    failed: int = Field(description="Number of messages given up in the last 7 days.")
    last_delivery_at: datetime | None = Field(description="Time of the last delivered message.")


class WebhookSecret(WebhookDetails):
    """A new webhook with its secret."""

    secret: str = Field(description="Signing key, as Standard Webhooks libraries expect it.")


class DeliveryDetails(ResponseModel):
    """A message to an endpoint: pending, delivered or given up."""

    id: int
    message_id: str = Field(description="Value of the `webhook-id` header, the same in all attempts.")
    event: str
    payload: dict[str, Any]
    state: Open[Literal["pending", "delivered", "failed"]]
    attempts: int
    next_attempt_at: datetime | None
    status: int | None = Field(description="HTTP status of the last response; null without one.")
    answer: str | None = Field(description="Start of the last response, or the error; untrusted.")
    created_at: datetime = Field(
        description="Time when the message was queued, or resent by a user; for the event's own time, see `payload`."
    )
    finished_at: datetime | None


class DeliveryPage(ResponseModel):
    """A page of messages, newest first."""

    deliveries: list[DeliveryDetails]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class TaskFacts(ResponseModel):
    """Data of `task.ready`, `task.failed`, `append.ready` and `append.failed`."""

    task_id: str
    name: str
    domain_id: str = Field(description="The domain's task; for an append, that of the domain it extends.")
    videos: int = Field(description="Number of accepted videos; for an append, of appended ones.")
    rejected: int = Field(description="Number of unusable videos.")
    release: str | None = Field(description="Release that the task published; null without one.")
    error: str | None = Field(description="Reason for the failure.")
    error_hint: str | None = Field(description="How to remedy the failure.")


class ServedReleaseFacts(ResponseModel):
    """Data of `release.served`."""

    release: str | None = Field(description="Release that is served now.")
    before: str = Field(description="Release that was served before.")
    newest: str | None
    pinned: bool = Field(description="Whether the release stays served when a task publishes a newer one.")
