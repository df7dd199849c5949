"""Deliver messages: endpoints take turns, and a failed attempt is repeated after a pause.

A worker holds the lease of an endpoint while it sends, so one worker at a time sends to an endpoint, in the order of
its messages. If it dies while sending, its lease expires, and the message is sent again with the same ID, by which
receivers recognize it.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import structlog
from sqlalchemy import delete, exists, or_, select, update
from sqlalchemy.orm import Session
from standardwebhooks import Webhook as Signer

from service.catalog.database import now, session_scope
from service.catalog.leases import Lease, acquire
from service.catalog.operation_tables import Delivery, LeaseRow, Webhook
from service.core.errors import CinestrataError
from service.webhooks.sending import Answer, send_message

# The schedule that Standard Webhooks recommends: 75 hours in all.
RETRY_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
RETENTION = timedelta(days=7)  # for finished messages, and for those that no attempt delivered

_OUTAGE_ATTEMPTS = 3  # accepting a message after this many attempts ends an outage
_JITTER = 0.1  # share of a pause, so that messages do not all return at once
_GONE = 410
# Longer than an attempt in which name lookup, connection and response all use up their timeouts.
_LEASE_SECONDS = 120.0

log = structlog.get_logger(__name__)

_TURN_SECONDS = 20.0  # after which other endpoints come first
_POLL_SECONDS = 2.0
_SWEEP_SECONDS = 600.0


def due_endpoints() -> Sequence[str]:
    """List the IDs of endpoints with due messages that no worker sends to, longest without a turn first."""
    with session_scope() as session:
        at = now(session)
        is_due = exists().where(
            Delivery.webhook_id == Webhook.id, Delivery.state == "pending", Delivery.next_attempt_at <= at
        )
        return session.scalars(
            select(Webhook.id)
            .outerjoin(LeaseRow, (LeaseRow.kind == "webhook") & (LeaseRow.id == Webhook.id))
            .where(Webhook.enabled.is_(True), is_due, or_(LeaseRow.until.is_(None), LeaseRow.until <= at))
            .order_by(LeaseRow.until.nulls_first(), Webhook.id)
        ).all()


def claim_turn(webhook_id: str) -> Lease | None:
    """Lease an endpoint; None if another worker has its lease."""
    with session_scope(write=True) as session:
        return acquire(session, "webhook", webhook_id, seconds=_LEASE_SECONDS)


class _Attempt(NamedTuple):
    """An attempt to send a message, as the catalog had it when the attempt began."""

    message: Delivery
    webhook: Webhook
    at: datetime


def send_next(webhook_id: str, lease: Lease) -> Answer | None:
    """Send an endpoint's oldest due message and store the answer; None if none is due, or the endpoint is lost."""
    with session_scope(write=True) as session:
        at = now(session)
        is_enabled = session.scalar(select(Webhook.enabled).where(Webhook.id == webhook_id))
        if not lease.renew(session) or not is_enabled:
            return None
        oldest = session.scalar(
            select(Delivery.id)
            .where(
                Delivery.webhook_id == webhook_id, Delivery.state == "pending", Delivery.next_attempt_at <= at
            )
            .order_by(Delivery.id)
            .limit(1)
        )
        attempt = None if oldest is None else _begin_attempt(session, oldest, at)
    return None if attempt is None else _send(attempt, is_test=False)


def send_once(delivery_id: int) -> None:
    """Send a test message, whatever its endpoint's state, and do not repeat it."""
    with session_scope(write=True) as session:
        attempt = _begin_attempt(session, delivery_id, now(session))
    if attempt is not None:
        _send(attempt, is_test=True)


def _begin_attempt(session: Session, delivery_id: int, at: datetime) -> _Attempt | None:
    """Count an attempt; None if the message was given up or removed meanwhile."""
    message = session.scalars(
        update(Delivery)
        .where(Delivery.id == delivery_id, Delivery.state == "pending")
        .values(attempts=Delivery.attempts + 1)
        .returning(Delivery)
    ).one_or_none()
    return None if message is None else _Attempt(message, session.get_one(Webhook, message.webhook_id), at)


def _send(attempt: _Attempt, *, is_test: bool) -> Answer:
    message, webhook = attempt.message, attempt.webhook
    at = attempt.at.astimezone(UTC)  # the library reads any time as UTC
    body = _body(message.payload)
    headers = {
        "webhook-id": message.message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Signer(webhook.secret).sign(message.message_id, at, body),
    }
    answer = send_message(webhook.url, headers, body.encode())
    with session_scope(write=True) as session:
        _store(session, message, answer, is_test)
    if not answer.is_success:
        log.info(
            "webhook_attempt_failed",
            webhook=webhook.id,
            message=message.message_id,
            attempt=message.attempts,
            status=answer.status,
        )
    return answer


def _body(payload: dict[str, Any]) -> str:
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()


def _store(session: Session, message: Delivery, answer: Answer, is_test: bool) -> None:
    # Lock rows in the same order as removing an endpoint does.
    webhook = session.scalars(
        select(Webhook).where(Webhook.id == message.webhook_id).with_for_update()
    ).one_or_none()
    row = session.scalars(select(Delivery).where(Delivery.id == message.id).with_for_update()).one_or_none()
    if webhook is None or row is None or row.attempts != message.attempts or row.state != "pending":
        return  # the endpoint was removed, or another worker sent the message after the lease expired
    at = now(session)
    row.status, row.answer = answer.status, answer.text
    reason = answer.text if answer.is_forbidden else None
    if answer.status == _GONE:
        reason = "The endpoint responded with status 410 (Gone)."
    if answer.is_success or is_test or reason or message.attempts > len(RETRY_SECONDS):
        row.state = "delivered" if answer.is_success else "failed"
        row.finished_at, row.next_attempt_at = at, None
    else:
        pause = max(RETRY_SECONDS[message.attempts - 1], answer.retry_after)
        spread = 1 + _JITTER * random.random()  # noqa: S311 (no secret)
        row.next_attempt_at = at + timedelta(seconds=pause * spread)
    if answer.is_success and message.attempts >= _OUTAGE_ATTEMPTS:
        make_backlog_due(session, webhook.id, at)
    elif reason and not is_test:
        webhook.enabled, webhook.reason = False, reason
        log.warning("webhook_disabled", webhook=webhook.id, reason=reason)


def make_backlog_due(session: Session, webhook_id: str, at: datetime) -> None:
    """Make all of an endpoint's waiting messages due now, in their order: their pauses may be hours long."""
    session.execute(
        update(Delivery)
        .where(Delivery.webhook_id == webhook_id, Delivery.state == "pending", Delivery.next_attempt_at > at)
        .values(next_attempt_at=at)
        .execution_options(synchronize_session=False)
    )


def sweep_deliveries() -> None:
    """Give up messages not delivered after 7 days, and delete finished messages after that time."""
    with session_scope(write=True) as session:
        limit = now(session) - RETENTION
        session.execute(delete(Delivery).where(Delivery.finished_at < limit))
        session.execute(
            update(Delivery)
            .where(Delivery.state == "pending", Delivery.created_at < limit)
            .values(state="failed", finished_at=now(session), next_attempt_at=None)
            .execution_options(synchronize_session=False)
        )


class DeliveryThread(threading.Thread):
    """Delivers due messages every few seconds, until it is stopped. Every worker process has one.

    It is separate from task maintenance, which must not wait for endpoints. An endpoint that does not respond delays
    the others of a round by one attempt.
    """

    def __init__(self) -> None:
        super().__init__(name="webhooks", daemon=True)
        self._stop_requested = threading.Event()

    def run(self) -> None:
        """Run rounds until :meth:`stop`."""
        sweep_due = 0.0  # on the monotonic clock
        while not self._stop_requested.wait(_POLL_SECONDS):
            try:
                self.deliver_due()
                if time.monotonic() >= sweep_due:
                    sweep_due = time.monotonic() + _SWEEP_SECONDS
                    sweep_deliveries()
            except CinestrataError as error:
                log.warning("webhooks_postponed", reason=str(error))
            except Exception:
                log.exception("webhooks_failed")

    def deliver_due(self) -> None:
        """Give each endpoint with due messages a turn; raise Unavailable."""
        for webhook_id in due_endpoints():
            if not self._stop_requested.is_set() and (lease := claim_turn(webhook_id)) is not None:
                self._run_turn(webhook_id, lease)

    def stop(self) -> None:
        """End after the current message. If its attempt does not end soon, another worker repeats it."""
        self._stop_requested.set()
        if self.is_alive():
            self.join(timeout=1)

    def _run_turn(self, webhook_id: str, lease: Lease) -> None:
        """Send an endpoint's messages, oldest first, until an attempt fails."""
        deadline = time.monotonic() + _TURN_SECONDS
        with lease:
            try:
                while not self._stop_requested.is_set() and time.monotonic() < deadline:
                    answer = send_next(webhook_id, lease)
                    if answer is None or not answer.is_success:
                        break
            except Exception:
                lease.end()  # it expires, so that the message is not repeated at once
                log.exception("webhook_turn_failed", webhook=webhook_id)
