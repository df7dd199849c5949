"""Turns of endpoints: the lease of a worker that sends to an endpoint, and the pause of an endpoint that fails.

A turn is claimed with one conditional UPDATE, so one worker at a time sends to an endpoint, in the order of its
messages. The end of the lease identifies the turn: a worker that lost it can neither renew nor release that of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.orm import Session

from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Delivery, Webhook

__all__ = ["Turn", "claim_turns", "end_pause", "make_backlog_due", "release_turn", "renew_turn"]

# Longer than an attempt whose name server, connection and answer all use their timeouts.
_LEASE = timedelta(seconds=120)
_OUTAGE_FAILURES = (
    3  # in a row: more than a message that the endpoint refuses, once the next message is accepted
)


@dataclass
class Turn:
    """Permission of a worker to send the due messages of an endpoint.

    Attributes:
        webhook_id: Identifier of the endpoint.
        is_failing: Whether the endpoint has accepted no message since its last failure.
        lease_expires_at: End of the lease.
    """

    webhook_id: str
    is_failing: bool
    lease_expires_at: datetime


def claim_turns(limit: int, failing_limit: int) -> list[Turn]:
    """Claim endpoints with due messages: those without failures first, then by the time since their last turn.

    Args:
        limit: Maximum number of turns.
        failing_limit: Maximum number of turns of failing endpoints among them.

    Raises:
        Unavailable: the catalog cannot be reached.
    """
    with session_scope() as session:
        at = now(session)
        is_due = exists().where(
            Delivery.webhook_id == Webhook.id, Delivery.state == "pending", Delivery.next_attempt_at <= at
        )
        candidates = session.execute(
            select(Webhook.id, Webhook.failures)
            .where(*_free(at), is_due)
            .order_by(Webhook.failures > 0, Webhook.lease_expires_at.nulls_first(), Webhook.id)
        ).all()
    turns: list[Turn] = []
    for webhook_id, failures in candidates:
        if len(turns) >= limit or (failures and failing_limit <= 0):
            break  # only failing endpoints follow a failing endpoint
        turn = _claim(webhook_id, failures > 0)
        if turn is not None:
            turns.append(turn)
            failing_limit -= turn.is_failing
    return turns


def _free(at: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        Webhook.enabled.is_(True),
        or_(Webhook.next_attempt_at.is_(None), Webhook.next_attempt_at <= at),
        or_(Webhook.lease_expires_at.is_(None), Webhook.lease_expires_at <= at),
    )


def _claim(webhook_id: str, is_failing: bool) -> Turn | None:
    with session_scope(write=True) as session:
        at = now(session)
        claimed = session.execute(
            update(Webhook)
            .where(Webhook.id == webhook_id, *_free(at))
            .values(lease_expires_at=at + _LEASE)
            .returning(Webhook.lease_expires_at)
            .execution_options(synchronize_session=False)
        ).scalar_one_or_none()
    return None if claimed is None else Turn(webhook_id, is_failing, claimed)


def renew_turn(session: Session, turn: Turn, at: datetime) -> bool:
    """Extend the lease of a turn.

    Returns:
        False if the endpoint was removed or disabled, or the lease has expired and another worker has the turn.
    """
    renewed = session.execute(
        update(Webhook)
        .where(
            Webhook.id == turn.webhook_id,
            Webhook.enabled.is_(True),
            Webhook.lease_expires_at == turn.lease_expires_at,
        )
        .values(lease_expires_at=at + _LEASE)
        .returning(Webhook.lease_expires_at)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if renewed is None:
        return False
    turn.lease_expires_at = renewed
    return True


def release_turn(turn: Turn) -> None:
    """End a turn, so that the endpoint can have its next one.

    Raises:
        Unavailable: the catalog cannot be reached; the lease expires.
    """
    with session_scope(write=True) as session:
        session.execute(
            update(Webhook)
            .where(Webhook.id == turn.webhook_id, Webhook.lease_expires_at == turn.lease_expires_at)
            .values(lease_expires_at=now(session))
            .execution_options(synchronize_session=False)
        )


def end_pause(session: Session, webhook: Webhook, at: datetime) -> None:
    """Let an endpoint that has accepted a message receive its backlog.

    Messages that failed in an outage have pauses of hours; they become due. A message that the endpoint refuses by
    itself keeps its pause.
    """
    if webhook.failures >= _OUTAGE_FAILURES:
        make_backlog_due(session, webhook, at)
    webhook.failures, webhook.next_attempt_at = 0, None


def make_backlog_due(session: Session, webhook: Webhook, at: datetime) -> None:
    """Let workers send all waiting messages of an endpoint now, in their order."""
    session.execute(
        update(Delivery)
        .where(Delivery.webhook_id == webhook.id, Delivery.state == "pending", Delivery.next_attempt_at > at)
        .values(next_attempt_at=at)
        .execution_options(synchronize_session=False)
    )
    webhook.next_attempt_at = None
