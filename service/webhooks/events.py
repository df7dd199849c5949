"""Turn events into messages to the registered endpoints.

A message is stored in its event's transaction: an event that is rolled back sends nothing, and none is lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.webhooks import TaskFacts, WebhookEvent
from service.catalog.database import now
from service.catalog.operation_tables import Delivery, Webhook
from service.catalog.tables import Task

MAX_PENDING = 10_000  # messages per endpoint; beyond that, it gets no more events
_MAX_TEXT_CHARS = 2000

log = structlog.get_logger(__name__)


def emit(session: Session, event: WebhookEvent, data: Mapping[str, Any]) -> None:
    """Store a message for each endpoint that receives an event, in the transaction of the change that it reports.

    Args:
        data: What happened, as JSON values without secrets.
    """
    webhooks = session.scalars(select(Webhook).where(Webhook.enabled.is_(True))).all()
    for webhook in webhooks:
        if event not in webhook.events:
            continue
        pending = session.scalar(
            select(func.count()).where(Delivery.webhook_id == webhook.id, Delivery.state == "pending")
        )
        if (pending or 0) >= MAX_PENDING:
            log.warning("webhook_message_dropped", webhook=webhook.id, webhook_event=event)
            continue
        session.add(new_message(session, webhook.id, event, data))


def new_message(session: Session, webhook_id: str, event: str, data: Mapping[str, Any]) -> Delivery:
    """Create a message that is due at once. The caller adds it to the session."""
    at = now(session)
    return Delivery(
        webhook_id=webhook_id,
        message_id=f"msg_{secrets.token_hex(12)}",
        event=event,
        payload={"type": event, "timestamp": at.isoformat(), "data": dict(data)},
        state="pending",
        attempts=0,
        next_attempt_at=at,
        created_at=at,
    )


def emit_task_state(session: Session, task: Task) -> None:
    """Store messages about a task that has just become ready or failed; other states are not reported."""
    if task.state not in ("ready", "failed"):
        return
    facts = TaskFacts(
        task_id=task.id,
        name=task.name,
        domain_id=task.target_id or task.id,
        videos=task.counts.get("appended" if task.target_id else "accepted", 0),
        rejected=task.counts.get("rejected", 0),
        release=task.release_id,
        error=task.error and task.error[:_MAX_TEXT_CHARS],
        error_hint=task.error_hint and task.error_hint[:_MAX_TEXT_CHARS],
    )
    data = facts.model_dump(mode="json")
    kind = "append" if task.target_id else "task"
    emit(session, f"{kind}.{task.state}", data)  # type: ignore[arg-type]
