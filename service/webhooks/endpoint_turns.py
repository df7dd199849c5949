"""Turns of endpoints: the lease of a worker that sends to an endpoint.

A turn is claimed with one conditional UPDATE, so one worker at a time sends to an endpoint, in the order of its
messages. The end of the lease identifies the turn: a worker that lost it can neither renew nor release that of another.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.orm import Session

from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Delivery, Webhook

# Longer than an attempt whose name server, connection and answer all use their timeouts.
_LEASE = timedelta(seconds=120)


@dataclass
class Turn:
    """Permission of a worker to send the due messages of an endpoint.

    Attributes:
        webhook_id: Identifier of the endpoint.
        lease_expires_at: End of the lease.
    """

    webhook_id: str
    lease_expires_at: datetime


def claim_turns(limit: int) -> list[Turn]:
    """Claim at most ``limit`` endpoints with due messages, by the time since their last turn.

    Raises:
        Unavailable: the catalog cannot be reached.
    """
    with session_scope() as session:
        at = now(session)
        is_due = exists().where(
            Delivery.webhook_id == Webhook.id, Delivery.state == "pending", Delivery.next_attempt_at <= at
        )
        candidates = session.scalars(
            select(Webhook.id)
            .where(*_free(at), is_due)
            .order_by(Webhook.lease_expires_at.nulls_first(), Webhook.id)
        ).all()
    turns = (turn for webhook_id in candidates if (turn := _claim(webhook_id)) is not None)
    return list(islice(turns, limit))


def _free(at: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        Webhook.enabled.is_(True),
        or_(Webhook.lease_expires_at.is_(None), Webhook.lease_expires_at <= at),
    )


def _claim(webhook_id: str) -> Turn | None:
    with session_scope(write=True) as session:
        at = now(session)
        claimed = session.execute(
            update(Webhook)
            .where(Webhook.id == webhook_id, *_free(at))
            .values(lease_expires_at=at + _LEASE)
            .returning(Webhook.lease_expires_at)
            .execution_options(synchronize_session=False)
        ).scalar_one_or_none()
    return None if claimed is None else Turn(webhook_id, claimed)


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
