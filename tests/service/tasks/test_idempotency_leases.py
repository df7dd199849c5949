"""Reservations of Idempotency-Keys: held by requests in execution, free after the death of their process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import TaskDetails, TaskSpec
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease
from service.catalog.tables import IdempotencyKey, LeaseRow
from service.core.errors import IdempotencyInFlight, NotFound
from service.core.settings import Settings
from service.tasks import commands
from service.tasks.idempotency import CreateOutcome, TaskRequest

REQUEST = TaskRequest("k", "me")


def _store_task(make_file: Callable[[str], Path]) -> TaskDetails:
    make_file("a.mp4")
    spec = TaskSpec.model_validate({"name": "birds", "videos": [{"uri": "a.mp4"}]})
    return commands.create_task(spec, idempotency_key="answered", caller="me").task


def _expire() -> timedelta:
    """Let the lease of the only unanswered key expire; returns its duration."""
    with session_scope(write=True) as session:
        row = session.scalars(select(LeaseRow).where(LeaseRow.id.endswith(" k"))).one()
        created = select(IdempotencyKey.created_at).where(IdempotencyKey.key == "k")
        lease = row.until - session.scalars(created).one()
        row.until = now(session) - timedelta(seconds=1)
    return lease


def test_key_of_a_dead_process_is_free_after_its_lease(catalog: Settings) -> None:
    assert isinstance(REQUEST.reserve("hash"), Lease)
    with pytest.raises(IdempotencyInFlight):
        REQUEST.reserve("hash")
    assert 1 <= _expire() / timedelta(seconds=catalog.lease_seconds) < 2
    assert isinstance(REQUEST.reserve("hash"), Lease)
    with pytest.raises(IdempotencyInFlight):
        REQUEST.reserve("hash")


def test_only_the_first_of_two_overlapping_requests_stores_its_response(
    catalog: Settings, make_file: Callable[[str], Path]
) -> None:
    """A process that stops for longer than the lease fails when it continues, and its transaction stores nothing."""
    task = _store_task(make_file)
    assert isinstance(REQUEST.reserve("hash"), Lease)  # the process that stops
    _expire()
    assert isinstance(REQUEST.reserve("hash"), Lease)
    with session_scope(write=True) as session:
        REQUEST.settle(session, task)
    with pytest.raises(IdempotencyInFlight), session_scope(write=True) as session:
        REQUEST.settle(session, task)
    assert REQUEST.reserve("hash") == task.model_dump(mode="json")


def test_request_in_execution_renews_its_key_until_its_end(
    tmp_path: Path, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_factory(tmp_path, lease_seconds=0.3)
    renewed = threading.Event()
    renew = Lease.renew

    def observe(lease: Lease, session: Session) -> bool:
        is_held = renew(lease, session)
        if is_held:
            renewed.set()
        return is_held

    def fail_late() -> CreateOutcome:
        assert renewed.wait(30)
        raise NotFound("late")

    monkeypatch.setattr(Lease, "renew", observe)
    for _ in range(2):  # the first request frees the key
        with pytest.raises(NotFound):
            REQUEST.create_once("content", fail_late)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lease")]
