"""Webhook endpoints, and the messages that events send to them.

A message is stored in its event's transaction: an event that is rolled back sends nothing, and none is lost.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from typing import Any

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas import webhooks
from cinestrata_schemas.uris import redact_uri
from service.access.audit_log import record_change
from service.catalog.database import now, session_scope
from service.catalog.keyset_paging import KeysetOrders
from service.catalog.operation_tables import Delivery, Webhook
from service.catalog.tables import Task, to_response
from service.core.errors import Conflict, NotFound
from service.core.list_parameters import PageParameters
from service.webhooks.deliveries import check_url, make_backlog_due, send_once

MAX_WEBHOOKS = 50
MAX_PENDING = 10_000  # messages per endpoint; beyond that, it gets no more events
_SECRET_BYTES = 32
_MAX_TEXT_CHARS = 2000

log = structlog.get_logger(__name__)

_ORDERS = KeysetOrders({"created": Delivery.id}, unique=Delivery.id)


def create_webhook(spec: webhooks.WebhookSpec) -> webhooks.WebhookSecret:
    """Store an endpoint, whose secret only this result has; raise InvalidInput (address) or Conflict (too many)."""
    check_url(spec.url)
    with session_scope(write=True) as session:
        if (session.scalar(select(func.count()).select_from(Webhook)) or 0) >= MAX_WEBHOOKS:
            raise Conflict(f"There are {MAX_WEBHOOKS} webhooks already; remove one first.")
        row = Webhook(
            id=f"whk_{secrets.token_hex(8)}",
            url=spec.url,
            secret=f"whsec_{base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()}",
            events=list(dict.fromkeys(spec.events)),
            enabled=True,
            created_at=now(session),
        )
        session.add(row)
        session.flush()
        record_change(session, "webhook.create", row.id, {"url": redact_uri(row.url), "events": row.events})
        return webhooks.WebhookSecret(**dict(_details(session, row)), secret=row.secret)


def list_webhooks() -> list[webhooks.WebhookDetails]:
    """List all endpoints, oldest first."""
    with session_scope() as session:
        rows = session.scalars(select(Webhook).order_by(Webhook.created_at, Webhook.id))
        return [_details(session, row) for row in rows]


def edit_webhook(webhook_id: str, patch: webhooks.WebhookPatch) -> webhooks.WebhookDetails:
    """Change an endpoint's events, or whether it is enabled; raise NotFound."""
    with session_scope(write=True) as session:
        row = _require(session, webhook_id)
        if patch.events is not None:
            row.events = list(dict.fromkeys(patch.events))
        if patch.enabled is not None:
            row.enabled, row.reason = patch.enabled, None
            make_backlog_due(session, row.id, now(session))
        record_change(session, "webhook.edit", row.id, patch.model_dump(exclude_none=True))
        session.flush()
        return _details(session, row)


def remove_webhook(webhook_id: str) -> None:
    """Remove an endpoint with its messages; raise NotFound."""
    with session_scope(write=True) as session:
        row = _require(session, webhook_id)
        record_change(session, "webhook.remove", row.id, {"url": redact_uri(row.url)})
        session.delete(row)


def send_test(webhook_id: str) -> webhooks.DeliveryDetails:
    """Send one ``webhook.test`` message now, also to a disabled endpoint, and return its result; raise NotFound."""
    with session_scope(write=True) as session:
        row = _require(session, webhook_id)
        message = new_message(session, row.id, "webhook.test", {"webhook_id": row.id})
        message.next_attempt_at = None  # so that no worker sends it
        session.add(message)
        session.flush()
        number = message.id
        record_change(session, "webhook.test", row.id)
    send_once(number)
    with session_scope() as session:
        return to_response(webhooks.DeliveryDetails, session.get_one(Delivery, number))


def resend(webhook_id: str, delivery_id: int) -> webhooks.DeliveryDetails:
    """Queue a finished message again, with all of its attempts ahead; raise NotFound, or Conflict if it is pending."""
    with session_scope(write=True) as session:
        row = session.scalars(
            select(Delivery)
            .where(Delivery.id == delivery_id, Delivery.webhook_id == webhook_id)
            .with_for_update()
        ).one_or_none()
        if row is None:
            raise NotFound(f"There is no message {delivery_id} of webhook {webhook_id!r}.")
        if row.state == "pending":
            raise Conflict("The message is pending; workers send it.")
        # The payload keeps the event's time; the message is given up 7 days from now.
        row.created_at = row.next_attempt_at = now(session)
        row.state, row.attempts, row.finished_at = "pending", 0, None
        record_change(session, "webhook.resend", webhook_id, {"message": row.message_id})
        session.flush()
        return to_response(webhooks.DeliveryDetails, row)


def list_deliveries(webhook_id: str, wanted: PageParameters) -> webhooks.DeliveryPage:
    """List a page of an endpoint's messages, newest first; raise NotFound."""
    with session_scope() as session:
        _require(session, webhook_id)
        query = select(Delivery).where(Delivery.webhook_id == webhook_id)
        page = _ORDERS.read_page(session, query, "-created", wanted.cursor, wanted.limit)
        deliveries = [to_response(webhooks.DeliveryDetails, row) for row in page.rows]
        return webhooks.DeliveryPage(deliveries=deliveries, next_cursor=page.next_cursor)


def _require(session: Session, webhook_id: str) -> Webhook:
    row = session.get(Webhook, webhook_id) if "\0" not in webhook_id else None
    if row is None:
        raise NotFound(f"There is no webhook {webhook_id[:100]!r}.")
    return row


def _details(session: Session, row: Webhook) -> webhooks.WebhookDetails:
    states = select(Delivery.state, func.count(), func.max(Delivery.finished_at))
    by_state = {
        state: (number, last)
        for state, number, last in session.execute(
            states.where(Delivery.webhook_id == row.id).group_by(Delivery.state)
        )
    }
    return to_response(
        webhooks.WebhookDetails,
        row,
        url=redact_uri(row.url),
        pending=by_state.get("pending", (0, None))[0],
        failed=by_state.get("failed", (0, None))[0],
        last_delivery_at=by_state.get("delivered", (0, None))[1],
    )


def emit(session: Session, event: webhooks.WebhookEvent, data: Mapping[str, Any]) -> None:
    """Store a message (JSON values without secrets) for each endpoint that receives an event, in its transaction."""
    for webhook in session.scalars(select(Webhook).where(Webhook.enabled.is_(True))).all():
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
    facts = webhooks.TaskFacts(
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
    kind = "append" if task.target_id and not task.upgrades else "task"
    emit(session, f"{kind}.{task.state}", data)  # type: ignore[arg-type]
