"""Delivery of messages: a claim on each due message, the attempt, its result, and the next attempt after a failure.

A claim is one conditional UPDATE with a lease, so several workers send a message once. A worker that dies while sending
leaves a lease that expires; the message is sent again with the same identifier, by which receivers recognize it.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Delivery, Webhook
from service.core.errors import CinestrataError
from service.webhooks.sending import Answer, send_message
from service.webhooks.signing import signed_headers

__all__ = ["RETENTION", "RETRY_SECONDS", "DeliveryThread", "deliver", "deliver_due", "sweep_deliveries"]

# The schedule that Standard Webhooks recommends: 75 hours in all.
RETRY_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
RETENTION = timedelta(days=7)  # of finished messages, and of messages that no attempt delivered

_JITTER = 0.1  # share of a pause, so that messages do not return together
_LEASE = timedelta(seconds=60)
_GONE = 410
_POLL_SECONDS = 2.0
_SWEEP_SECONDS = 600.0
_DUE = 200  # messages of one round
_ENDPOINTS = 4  # endpoints that a worker sends to at the same time
_ENDPOINT_SECONDS = 20.0  # after this time, the next round goes on with an endpoint

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Message:
    id: int
    attempts: int
    webhook_id: str
    url: str
    secret: str
    message_id: str
    body: bytes
    at: datetime


def deliver_due() -> int:
    """Send the messages that are due, those of an endpoint in order; returns the number of attempts.

    Raises:
        Unavailable: the catalog cannot be reached.
    """
    with session_scope() as session:
        at = now(session)
        due = session.execute(
            select(Delivery.id, Delivery.webhook_id)
            .join(Webhook, Webhook.id == Delivery.webhook_id)
            .where(
                Delivery.state == "pending",
                Delivery.next_attempt_at <= at,
                Webhook.enabled.is_(True),
                or_(Delivery.lease_expires_at.is_(None), Delivery.lease_expires_at < at),
            )
            .order_by(Delivery.next_attempt_at, Delivery.id)
            .limit(_DUE)
        ).all()
    by_endpoint: dict[str, list[int]] = {}
    for delivery_id, webhook_id in due:
        by_endpoint.setdefault(webhook_id, []).append(delivery_id)
    groups = list(by_endpoint.values())
    attempts = [0] * len(groups)
    for start in range(0, len(groups), _ENDPOINTS):
        # Threads without an executor, which would let a stopping worker wait for a silent endpoint.
        threads = [
            threading.Thread(target=_deliver_in_order, args=(groups[n], attempts, n), daemon=True)
            for n in range(start, min(start + _ENDPOINTS, len(groups)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(attempts)


def _deliver_in_order(delivery_ids: Sequence[int], attempts: list[int], place: int) -> None:
    """Send messages of an endpoint until an attempt fails, which postpones the others to the next round."""
    deadline = time.monotonic() + _ENDPOINT_SECONDS
    for delivery_id in delivery_ids:
        try:
            answer = deliver(delivery_id)
        except CinestrataError as error:  # the lease expires
            log.warning("webhook_result_not_stored", delivery=delivery_id, reason=str(error))
            return
        attempts[place] += answer is not None
        if (answer and not answer.is_success) or time.monotonic() > deadline:
            return


def deliver(delivery_id: int, *, is_test: bool = False) -> Answer | None:
    """Send a message once and store the result.

    Args:
        delivery_id: Identifier of the message.
        is_test: Whether it is sent regardless of its time and of the state of its endpoint, and not repeated.

    Returns:
        The answer; None if the message is not due, or another worker sends it.
    """
    message = _claim(delivery_id, is_test)
    if message is None:
        return None
    headers = signed_headers(message.secret, message.message_id, message.at, message.body)
    answer = send_message(message.url, headers, message.body)
    with session_scope(write=True) as session:
        _store(session, message, answer, is_test)
    if not answer.is_success:
        log.info(
            "webhook_attempt_failed",
            webhook=message.webhook_id,
            message=message.message_id,
            attempt=message.attempts,
            status=answer.status,
        )
    return answer


def _claim(delivery_id: int, is_test: bool) -> _Message | None:
    with session_scope(write=True) as session:
        at = now(session)
        idle = or_(Delivery.lease_expires_at.is_(None), Delivery.lease_expires_at < at)
        due = [] if is_test else [Delivery.next_attempt_at <= at, idle]
        attempts = session.execute(
            update(Delivery)
            .where(Delivery.id == delivery_id, Delivery.state == "pending", *due)
            .values(lease_expires_at=at + _LEASE, attempts=Delivery.attempts + 1)
            .returning(Delivery.attempts)
            .execution_options(synchronize_session=False)
        ).scalar_one_or_none()
        if attempts is None:
            return None
        row = session.execute(
            select(Delivery.webhook_id, Delivery.message_id, Delivery.payload, Webhook.url, Webhook.secret)
            .join(Webhook, Webhook.id == Delivery.webhook_id)
            .where(Delivery.id == delivery_id)
        ).one()
    return _Message(
        delivery_id, attempts, row.webhook_id, row.url, row.secret, row.message_id, _body(row.payload), at
    )


def _body(payload: dict[str, Any]) -> bytes:
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _store(session: Session, message: _Message, answer: Answer, is_test: bool) -> None:
    row = session.scalars(select(Delivery).where(Delivery.id == message.id).with_for_update()).one_or_none()
    if row is None or row.attempts != message.attempts or row.state != "pending":
        return  # the endpoint was removed, or the lease expired and another worker has sent the message
    at = now(session)
    row.status, row.answer, row.lease_expires_at = answer.status, answer.text, None
    is_last = is_test or message.attempts > len(RETRY_SECONDS) or answer.status == _GONE
    if answer.is_success or is_last:
        row.state = "delivered" if answer.is_success else "failed"
        row.finished_at, row.next_attempt_at = at, None
    else:
        pause = max(RETRY_SECONDS[message.attempts - 1], answer.retry_after)
        row.next_attempt_at = at + timedelta(seconds=pause * (1 + _JITTER * random.random()))  # noqa: S311 (spread)
    if answer.status == _GONE and not is_test:
        webhook = session.get_one(Webhook, message.webhook_id)
        webhook.enabled, webhook.reason = False, "The endpoint answered with status 410 (Gone)."


def sweep_deliveries() -> None:
    """Give up messages without a delivery after 7 days, and delete finished messages after that time.

    Raises:
        Unavailable: the catalog cannot be reached.
    """
    with session_scope(write=True) as session:
        limit = now(session) - RETENTION
        session.execute(delete(Delivery).where(Delivery.finished_at < limit))
        session.execute(
            update(Delivery)
            .where(Delivery.state == "pending", Delivery.created_at < limit)
            .values(state="failed", finished_at=now(session), next_attempt_at=None, lease_expires_at=None)
            .execution_options(synchronize_session=False)
        )


class DeliveryThread(threading.Thread):
    """Delivers due messages every few seconds, until it is stopped. Every worker process has one.

    It is separate from the maintenance of tasks, which must not wait for endpoints.
    """

    def __init__(self) -> None:
        super().__init__(name="webhooks", daemon=True)
        self._stop_requested = threading.Event()

    def run(self) -> None:
        """Run rounds until :meth:`stop`."""
        sweep_due = 0.0  # on the monotonic clock
        while not self._stop_requested.wait(_POLL_SECONDS):
            try:
                deliver_due()
                if time.monotonic() >= sweep_due:
                    sweep_due = time.monotonic() + _SWEEP_SECONDS
                    sweep_deliveries()
            except CinestrataError as error:
                log.warning("webhooks_postponed", reason=str(error))
            except Exception:
                log.exception("webhooks_failed")

    def stop(self) -> None:
        """End after the current round. An attempt that does not end soon is repeated by another worker."""
        self._stop_requested.set()
        if self.is_alive():
            self.join(timeout=1)
