"""Claims: which worker may process a task, and when its claim ends."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select

from cinestrata_schemas.tasks import TaskDetails
from service.catalog import leases
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import LeaseLost, Unavailable
from service.core.settings import Settings
from service.tasks import commands, lifecycle
from service.tasks.lifecycle import claims

Post = Callable[..., TaskDetails]


def _row(task_id: str) -> Task:
    with session_scope() as session:
        return session.get_one(Task, task_id)


def _claimed(task_id: str) -> lifecycle.Claim:
    claim = lifecycle.claim_training(task_id, "worker")
    assert claim is not None
    return claim


def test_only_the_first_unfinished_task_is_learned(catalog: Settings, post: Post, post_probed: Post) -> None:
    """A task that is not probed yet blocks the later ones, and a duplicate message has no effect."""
    first, second = post_probed("first"), post_probed("second")
    unprobed, last = post("third"), post_probed("last")
    assert lifecycle.claim_training(second.id, "b") is None
    claim = _claimed(first.id)
    for task in (first.id, second.id, "tsk_unknown"):
        assert lifecycle.claim_training(task, "b") is None
    assert lifecycle.claim_probing(first.id, "b") is None
    claim.fail("no good")
    _claimed(second.id).fail("no good")
    for task in (unprobed.id, last.id):
        assert lifecycle.claim_training(task, "b") is None


def _race_in_process(task_ids: list[str], results: multiprocessing.Queue[tuple[str, int]]) -> None:
    for task_id in task_ids:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            claim = lifecycle.claim_training(task_id, f"process-{multiprocessing.current_process().pid}")
            if claim is not None:
                results.put((task_id, claim.token))
                claim.fail("done")
            if _row(task_id).state == "failed":
                break


def test_processes_claim_each_task_once(catalog: Settings, post_probed: Post) -> None:
    ids = [post_probed(f"task {n}", videos=1).id for n in range(4)]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_race_in_process, args=(ids, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=60) for _ in ids]
    for worker in workers:
        worker.join(60)
    assert [task_id for task_id, _ in got] == ids
    assert results.empty()


@pytest.mark.parametrize("kind", ["probing", "training"])
def test_claim_of_an_expired_lease_records_the_lost_worker_like_the_reconciler(
    catalog: Settings, post: Post, post_probed: Post, expire: Callable, kind: str
) -> None:
    claim = lifecycle.claim_probing if kind == "probing" else lifecycle.claim_training
    messages = []
    for is_reconciled in (True, False):
        view = (post if kind == "probing" else post_probed)(f"task {is_reconciled}")
        assert claim(view.id, "dies") is not None
        expire(view.id)
        assert not is_reconciled or lifecycle.reconcile().recovered == (view.id,)
        fresh = claim(view.id, "next")
        assert fresh is not None
        logged = [e.data["message"] for e in commands.events_after(view.id) if e.kind == "log"]
        messages.append(logged[logged.index("Taken by dies.") :])
        fresh.fail("done")
    assert messages[0] == messages[1]
    assert messages[0] == [
        "Taken by dies.",
        "Lost its worker (dies); the task continues from its last checkpoint.",
        "Taken by next.",
    ]


def test_fencing_token_excludes_the_previous_owner(
    catalog: Settings, post_probed: Post, expire: Callable
) -> None:
    view = post_probed()
    stale = _claimed(view.id)
    expire(view.id)
    fresh = _claimed(view.id)
    assert fresh.token > stale.token
    for write in (
        lambda: stale.progress("training", 0.5),
        lambda: stale.advance("indexing"),
        lambda: stale.fail("too late"),
        lambda: stale.log("too late"),
        lambda: stale.release(),
        lambda: stale.publishing().__enter__(),
    ):
        with pytest.raises(LeaseLost):
            write()
    fresh.advance("training")
    assert _row(view.id).state == "training"
    expire(view.id)
    fresh.progress("training", 0.5)  # the lease has no new owner yet
    assert _row(view.id).progress["fraction"] == 0.5


@pytest.fixture
def task_id(sqlite_catalog: Settings, post_probed: Post) -> str:
    return post_probed().id


def test_progress_is_stored_in_the_task_and_as_events(task_id: str) -> None:
    figures = {"epoch": 1, "epochs": 4, "loss": 2.5, "videos_per_second": 12.0}
    claim = _claimed(task_id)
    claim.advance("training")
    claim.progress("training", 0.25, **figures)
    shown = commands.get_task(task_id)
    assert shown.state == "training"
    stored = shown.progress.model_dump(exclude_none=True)
    assert stored == {"stage": "training", "fraction": 0.25, **figures}
    every = commands.events_after(task_id)
    assert (every[-1].kind, every[-1].data["loss"]) == ("progress", 2.5)
    assert [e.id for e in every] == sorted(e.id for e in every)
    first = commands.events_after(task_id, limit=2)
    assert first + commands.events_after(task_id, first[-1].id) == every


def test_progress_events_are_throttled(task_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "EVENT_SECONDS", 3600)
    claim = _claimed(task_id)
    seen = commands.events_after(task_id)[-1].id
    for step in range(200):
        claim.progress("training", step / 200, epoch=1, epochs=2)
    claim.progress("training", 1.0, epoch=2, epochs=2)
    kinds = [(e.kind, e.data["fraction"]) for e in commands.events_after(task_id, seen)]
    assert kinds == [("progress", 0.0), ("progress", 1.0)]


class TestEndings:
    """Effects of leaving a claim's ``with`` block."""

    @pytest.mark.parametrize(
        ("raised", "error"),
        [
            (ValueError("settings.rank: must be at least 1"), "settings.rank: must be at least 1"),
            (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        ],
    )
    def test_exception_fails_the_task_with_its_text(
        self, task_id: str, raised: Exception, error: str
    ) -> None:
        with _claimed(task_id):
            raise raised
        shown = commands.get_task(task_id)
        assert (shown.state, shown.error) == ("failed", error)
        assert "retry" in (shown.error_hint or "")
        assert _row(task_id).lease_owner is None

    def test_cancellation_ends_the_work_at_the_next_progress_report(self, task_id: str) -> None:
        with _claimed(task_id) as claim:
            claim.advance("training")
            assert commands.cancel_task(task_id).cancel_requested
            assert commands.get_task(task_id).state == "training"
            claim.progress("training", 0.5)
            pytest.fail("progress() went on")
        cancelled = commands.get_task(task_id)
        assert (cancelled.state, cancelled.cancel_requested) == ("cancelled", False)

    def test_stopping_worker_signal_and_outage_release_the_task(self, task_id: str) -> None:
        with _claimed(task_id) as claim:
            leases.stopping.set()
            claim.tick()
            pytest.fail("tick() went on")
        row = _row(task_id)
        assert (row.attempts, row.lease_owner, row.state) == (0, None, "probing")
        leases.stopping.clear()
        with pytest.raises(KeyboardInterrupt), _claimed(task_id):
            raise KeyboardInterrupt  # a signal propagates
        assert (_row(task_id).attempts, _row(task_id).lease_owner) == (0, None)
        with _claimed(task_id):  # counts as an attempt
            raise Unavailable("the index is away")
        assert (_row(task_id).attempts, _row(task_id).state) == (1, "probing")

    def test_lost_lease_writes_nothing(self, catalog: Settings, post_probed: Post, expire: Callable) -> None:
        view = post_probed()
        with _claimed(view.id) as stale:
            expire(view.id)
            fresh = _claimed(view.id)
            stale.advance("training")
            pytest.fail("advance() went on")
        assert (_row(view.id).fencing_token, _row(view.id).state) == (fresh.token, "probing")


class TestHeartbeat:
    """The lease is renewed as long as progress is reported."""

    @pytest.fixture
    def task_id(
        self,
        tmp_path: Path,
        settings_factory: Callable[..., Settings],
        post_probed: Post,
        monkeypatch: pytest.MonkeyPatch,
    ) -> str:
        """A task whose lease is short."""
        monkeypatch.setattr(leases, "STALL_SECONDS", 0.6)
        settings_factory(tmp_path, lease_seconds=0.3)
        return post_probed().id

    def test_lease_is_renewed_while_progress_is_made(self, task_id: str) -> None:
        with _claimed(task_id) as claim:
            before = _row(task_id).lease_expires_at
            _until(lambda: _row(task_id).lease_expires_at > before, claim.tick)
            claim.fail("enough")

    def test_heartbeat_detects_a_lost_lease(self, task_id: str) -> None:
        with _claimed(task_id) as claim:
            with session_scope(write=True) as session:
                session.get_one(Task, task_id).fencing_token += 1
            with pytest.raises(LeaseLost):
                _until(lambda: False, claim.tick)

    def test_lease_expires_without_progress(self, task_id: str) -> None:
        with _claimed(task_id):
            # On a busy machine, a late heartbeat can still renew a lease that has expired.
            _until(lambda: lifecycle.reconcile().recovered == (task_id,))
            fresh = _claimed(task_id)
        assert _row(task_id).fencing_token == fresh.token

    def test_heartbeat_detects_cancellation(self, task_id: str) -> None:
        with _claimed(task_id) as claim:
            commands.cancel_task(task_id)
            _until(lambda: False, claim.tick)
        assert commands.get_task(task_id).state == "cancelled"

    def test_unavailable_database_does_not_stop_the_training(
        self, task_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with _claimed(task_id) as claim:

            def away(**_: object) -> None:
                raise Unavailable("locked")

            with monkeypatch.context() as patched:
                patched.setattr("service.tasks.lifecycle.claims.session_scope", away)
                claim.progress("training", 0.1)
            claim.progress("training", 0.2)
        assert _row(task_id).progress["fraction"] == 0.2


def _until(true: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "nothing happened for 20 seconds"
        meanwhile()
        time.sleep(0.02)


def test_new_progress_resets_the_attempts(catalog: Settings, post_probed: Post, expire: Callable) -> None:
    view = post_probed()
    for epoch in range(1, 6):  # more failures than max_attempts, but each in a later epoch
        claim = _claimed(view.id)
        claim.progress("training", epoch=epoch, epochs=9)
        expire(view.id)
        assert lifecycle.reconcile().recovered == (view.id,)
    assert _row(view.id).attempts == 1


def test_tasks_become_visible_in_queue_order(catalog: Settings, post: Post) -> None:
    """Tasks become visible in the order of positions; a task never overtakes an earlier task that is being stored."""
    names = [f"task {n}" for n in range(12)]
    seen: list[list[int]] = []
    with ThreadPoolExecutor(12) as threads:
        posted = [threads.submit(post, name, 1) for name in names]
        while not all(task.done() for task in posted):
            with session_scope() as session:
                seen.append(list(session.scalars(select(Task.position).order_by(Task.position))))
    assert all(positions == list(range(1, len(positions) + 1)) for positions in seen)
    assert [t.position for t in commands.list_tasks()] == list(range(1, 13))
