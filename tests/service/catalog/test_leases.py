"""Leases of the table ``leases``: one holder at a time, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.catalog.database import now, session_scope
from service.catalog.leases import RETENTION, Lease, acquire, is_leased, revoke, sweep_leases
from service.catalog.operation_tables import LeaseRow

pytestmark = pytest.mark.usefixtures("catalog")


def take(_: object = None) -> Lease | None:
    with session_scope(write=True) as session:
        return acquire(session, "job", "1")


def taken() -> Lease:
    lease = take()
    assert lease is not None
    return lease


def end_ago(ago: timedelta) -> None:
    with session_scope(write=True) as session:
        session.execute(update(LeaseRow).values(until=now(session) - ago))


def test_one_of_several_processes_acquires_a_lease() -> None:
    with ThreadPoolExecutor(4) as threads:
        assert [lease is not None for lease in threads.map(take, range(4))].count(True) == 1
    with session_scope() as session:
        assert session.scalar(select(is_leased("job", LeaseRow.id, now(session))))
        assert not session.scalar(select(is_leased("sync", LeaseRow.id, now(session))))


@pytest.mark.parametrize("is_revoked", [False, True])
def test_holder_that_lost_its_lease_neither_renews_nor_releases_that_of_the_next(is_revoked: bool) -> None:
    lost = taken()
    if is_revoked:
        with session_scope(write=True) as session:
            revoke(session, "job", "1")
    else:
        end_ago(timedelta(seconds=1))
    following = taken()
    with session_scope(write=True) as session:
        assert not lost.renew(session)
        assert not lost.release(session)
        assert following.renew(session)


def test_block_releases_its_lease() -> None:
    with taken():
        assert take() is None
    with taken() as lease:
        lease.end()  # its holder leaves the end to another transaction
    assert take() is None


def test_ended_leases_are_deleted_after_a_day() -> None:
    taken()
    for ago, remaining in ((RETENTION - timedelta(hours=1), 1), (RETENTION + timedelta(hours=1), 0)):
        end_ago(ago)
        with session_scope(write=True) as session:
            sweep_leases(session)
            assert len(session.scalars(select(LeaseRow)).all()) == remaining
