"""Requests and responses about webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints

from cinestrata_schemas.alerts import AlertKind
from cinestrata_schemas.model_types import Open, RequestModel, ResponseModel

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
    events: list[Open[WebhookEvent]]
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
    state: Open[Literal["pending", "delivered", "failed"]]
    attempts: int
    next_attempt_at: datetime | None
    status: int | None = Field(description="HTTP status of the last answer; null without one.")
    answer: str | None = Field(
        description="Beginning of the body of the last answer, or the error; untrusted text."
    )
    created_at: datetime = Field(
        description="Time at which the message was queued, or sent again by a user; the event has that of `payload`."
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
    domain_id: str = Field(
        description="Task of the domain: of an append, that of the domain that it extends."
    )
    videos: int = Field(description="Number of accepted videos; of an append, of appended ones.")
    rejected: int = Field(description="Number of videos that cannot be used.")
    release: str | None = Field(description="Release that the task published; null without one.")
    error: str | None = Field(description="Reason of the failure.")
    error_hint: str | None = Field(description="Remedy of the failure.")


class ServedReleaseFacts(ResponseModel):
    """Data of `release.served`."""

    release: str | None = Field(description="Release that answers searches now.")
    before: str = Field(description="Release that answered them before.")
    newest: str | None
    pinned: bool = Field(description="Whether the release stays when a task publishes a newer one.")


class AlertFacts(ResponseModel):
    """Data of `alert.raised` and `alert.cleared`."""

    id: int
    kind: Open[AlertKind]
    task_id: str | None = Field(description="Domain of the alert; null for the whole library.")
    task: str | None = Field(description="Name of the domain.")
    value: float = Field(description="Measured value.")
    threshold: float
    message: str
    raised_at: datetime
    cleared_at: datetime | None = Field(
        default=None, description="End of the crossing; only in `alert.cleared`."
    )


class WebhookTestFacts(ResponseModel):
    """Data of `webhook.test`, which `POST /webhooks/{webhook_id}/test` sends."""

    webhook_id: str


EVENT_FACTS: Mapping[str, type[ResponseModel]] = {
    "task.ready": TaskFacts,
    "task.failed": TaskFacts,
    "append.ready": TaskFacts,
    "append.failed": TaskFacts,
    "release.served": ServedReleaseFacts,
    "alert.raised": AlertFacts,
    "alert.cleared": AlertFacts,
    "webhook.test": WebhookTestFacts,
}
