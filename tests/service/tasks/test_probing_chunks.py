"""Several workers probe chunks of one task: shared, killed, cancelled, repeated."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from sqlalchemy import delete, select

from cinestrata_schemas.tasks import TaskDetails
from cli.embedded.up_command import release_leases
from media import DecoderUnavailable, VideoInfo, VideoLimits, content_hash, frame_cache_path
from service import celery_worker
from service.catalog.database import now, session_scope
from service.catalog.tables import Chunk, Task, Video
from service.core.errors import LeaseLost, TaskCancelled
from service.core.settings import Settings, settings
from service.tasks import commands, lifecycle, probing, probing_completion
from service.tasks.lifecycle import state_machine
from service.tasks.lifecycle.state_machine import set_state
from service.tasks.probing_completion import isolate_failures
from tests.catalog_rows import accepted_videos
from tests.claimed_probing import probe

VIDEOS = 24
CHUNK = 4

Post = Callable[..., TaskDetails]


class InstantDecoder:
    """Decoder that accepts every file without reading its frames, and notes its name and the process."""

    log: Path | None = None
    worker = "test"  # in the log
    dies_at: int | None = None  # number of the video during which the process is killed
    waits: tuple[int, str, int] | None = None  # before this video, until another worker has decoded so many

    def __init__(self, limits: VideoLimits) -> None:
        self.limits = limits

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def decode(self, path: Path, *, frames: int, size: int, cache: Path, **_: Any) -> VideoInfo:
        number = len(self.decoded_by(self.worker)) + 1
        if number == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        while self.waits and number == self.waits[0] and len(self.decoded_by(self.waits[1])) < self.waits[2]:
            time.sleep(0.005)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{self.worker} {path.name}\n")
        digest = content_hash(path)
        cached = frame_cache_path(cache, frames, size, digest)
        cached.parent.mkdir(parents=True, exist_ok=True)
        cached.touch()
        return VideoInfo(digest, 1, "mp4", "h264", 64, 64, 25.0, 1.0, 25)

    @classmethod
    def decoded_by(cls, worker: str) -> list[str]:
        """Return the names of the files that a worker has decoded."""
        lines = cls.log.read_text().splitlines() if cls.log is not None and cls.log.exists() else []
        return [line.split()[1] for line in lines if line.startswith(f"{worker} ")]


@pytest.fixture(autouse=True)
def _decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstantDecoder, "log", None)
    monkeypatch.setattr(probing, "VideoDecoder", InstantDecoder)
    monkeypatch.setattr(probing, "PROBE_CHUNK_VIDEOS", CHUNK)


@contextmanager
def _failing(target: Any, name: str, error: Exception) -> Iterator[None]:
    """Let a function raise an error."""

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, refuse)
        yield


def _plan(task_id: str) -> lifecycle.Claim:
    """Claim the task and plan its chunks, as a worker that is killed afterwards."""
    claim = lifecycle.claim_probing(task_id, "owner")
    assert claim is not None
    ids = [video.vector_id for video in _videos(task_id)]
    with claim.transaction() as session:
        lifecycle.plan_chunks(session, task_id, "probing", ids, CHUNK)
    return claim


def _claim_chunk(task_id: str, owner: str, **how: Any) -> lifecycle.ChunkClaim:
    chunk = lifecycle.claim_chunk(task_id, "probing", owner, **how)
    assert chunk is not None
    return chunk


def _videos(task_id: str) -> list[Any]:
    with session_scope() as session:
        return list(session.scalars(select(Video).where(Video.task_id == task_id).order_by(Video.vector_id)))


def _expire_chunks(task_id: str) -> None:
    with session_scope(write=True) as session:
        for chunk in session.scalars(
            select(Chunk).where(Chunk.task_id == task_id, Chunk.lease_owner.is_not(None))
        ):
            chunk.lease_expires_at = now(session) - timedelta(seconds=1)


def _start_worker(task_id: str, **attributes: Any) -> int:
    """Return a process that handles messages of the task until it is probed; returns its process ID.

    The attributes are those of its :class:`InstantDecoder`.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        for name, value in attributes.items():
            setattr(InstantDecoder, name, value)
        while commands.get_task(task_id).progress.stage != "waiting":
            celery_worker.probe(task_id)
            lifecycle.reconcile()
            time.sleep(0.02)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_processes_share_a_task_and_a_killed_one_loses_at_most_a_chunk(
    database: str, tmp_path: Path, settings_factory: Callable[..., Settings], post: Post
) -> None:
    settings_factory(tmp_path, database, lease_seconds=4)
    task = post(videos=VIDEOS)
    InstantDecoder.log = tmp_path / "decoded"
    # Each waits for the other, so that both take part: one is killed in the middle of its second chunk.
    killed = _start_worker(task.id, worker="killed", waits=(1, "other", 1), dies_at=CHUNK + 2)
    other = _start_worker(task.id, worker="other", waits=(CHUNK + 1, "killed", CHUNK + 1))
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == -signal.SIGKILL
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0

    view = commands.get_task(task.id)
    assert (view.progress.stage, view.counts.accepted, view.counts.rejected) == ("waiting", VIDEOS, 0)
    assert len(accepted_videos(task.id)) == VIDEOS
    times = Counter(InstantDecoder.decoded_by("killed") + InstantDecoder.decoded_by("other"))
    assert len(times) == VIDEOS
    # The video that the killed worker had finished in its last chunk is decoded again, and no other.
    assert sorted(times.values())[-2:] == [1, 2]
    with session_scope() as session:
        assert session.scalars(select(Chunk)).all() == []


@pytest.mark.slow
def test_copies_in_different_chunks_leave_the_video_with_the_smallest_vector_id(
    catalog: Settings, post: Post
) -> None:
    task = post(videos=3 * CHUNK)
    files = sorted((settings().media_root / "birds").iterdir(), key=lambda path: int(path.stem))
    for number in (5, 11):
        files[number].write_bytes(files[2].read_bytes())
    claim = _plan(task.id)
    first = lifecycle.claim_chunk(task.id, "probing", "slow")
    probing.probe_free_chunks(task.id, "fast")
    assert {video.uri for video in accepted_videos(task.id)} >= {"birds/5.mp4"}
    assert first is not None
    with first:
        pass  # given back
    with claim:
        probing.probe(claim)
    view = commands.get_task(task.id)
    assert {(r.uri, r.reason) for r in view.rejected} == {
        ("birds/5.mp4", "same content as birds/2.mp4"),  # noticed at the end
        ("birds/11.mp4", "same content as birds/5.mp4"),  # noticed by the worker that had accepted the other
    }
    assert "birds/2.mp4" in {video.uri for video in accepted_videos(task.id)}
    assert view.counts.accepted == 3 * CHUNK - 2


def test_broken_worker_does_not_fail_the_task_of_another(catalog: Settings, post: Post) -> None:
    task = post(videos=2 * CHUNK)
    claim = _plan(task.id)
    with _failing(InstantDecoder, "decode", RuntimeError("the decoder is not installed")):
        for _ in range(2 * state_machine.MAX_ATTEMPTS):
            probing.probe_free_chunks(task.id, "broken")
    assert lifecycle.claim_chunk(task.id, "probing", "other") is None, "no attempt is left"
    with claim:
        probing.probe(claim)
    view = commands.get_task(task.id)
    assert (view.counts.accepted, view.counts.rejected) == (2 * CHUNK, 0)


@pytest.mark.parametrize(
    "step", [(lifecycle, "send_due"), (probing, "require_writable"), (probing, "VideoDecoder")]
)
def test_chunk_is_released_if_its_worker_fails_before_it_begins(
    step: tuple[Any, str], sqlite_catalog: Settings, post: Post
) -> None:
    task = post(videos=CHUNK)
    _plan(task.id)
    with _failing(*step, OSError(24, "Too many open files")):
        probing.probe_free_chunks(task.id, "broken")
    with session_scope() as session:
        chunk = session.scalars(select(Chunk)).one()
        assert (chunk.lease_owner, chunk.attempts) == (None, 1)
        assert "Too many open files" in (chunk.error or "")
    _claim_chunk(task.id, "other")


@pytest.mark.slow
def test_task_fails_if_every_video_is_an_error_for_its_worker(catalog: Settings, post: Post) -> None:
    task = post(videos=6 * CHUNK)
    with _failing(InstantDecoder, "decode", RuntimeError("the codec is not installed")):
        view = probe(task.id)
    assert (view.state, view.rejected) == ("failed", [])
    assert "the codec is not installed" in (view.error or "")
    assert commands.retry_task(task.id).state == "queued"
    assert probe(task.id).counts.accepted == 6 * CHUNK


@pytest.mark.slow
def test_video_that_is_an_error_is_rejected_by_name_and_the_others_are_kept(
    catalog: Settings, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = post(videos=3 * CHUNK)
    decode = InstantDecoder.decode

    def fail_once(self: InstantDecoder, path: Path, **how: Any) -> VideoInfo:
        if path.name == "5.mp4":
            raise RuntimeError("a bug")
        return decode(self, path, **how)

    monkeypatch.setattr(InstantDecoder, "decode", fail_once)
    monkeypatch.setattr(probing_completion, "MAX_BAD_SHARE", 0.5)
    view = probe(task.id)
    assert (view.progress.stage, view.counts.accepted) == ("waiting", 3 * CHUNK - 1)
    assert [(each.uri, "(a bug) in 2 attempts" in each.reason) for each in view.rejected] == [
        ("birds/5.mp4", True)
    ]


def test_video_that_ends_its_workers_is_rejected_by_name_and_the_others_are_kept(
    catalog: Settings, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies stores nothing: the video is known once it is alone in a chunk."""
    monkeypatch.setattr(probing_completion, "MAX_BAD_SHARE", 0.5)
    task = post(videos=CHUNK)
    claim = _plan(task.id)
    _claim_chunk(task.id, "dead")
    _expire_chunks(task.id)
    isolate_failures(claim)
    assert lifecycle.claim_chunk(task.id, "probing", "other") is None, "the owner alone takes these risks"
    for _ in range(2):
        with session_scope(write=True) as session:  # those of the other videos wait
            others = session.scalars(select(Chunk).where(Chunk.first_id != _videos(task.id)[1].vector_id))
            for chunk in others:
                chunk.lease_expires_at = now(session) + timedelta(hours=1)
        _claim_chunk(task.id, "dead", owns_task=True)
        _expire_chunks(task.id)
    with session_scope(write=True) as session:
        for chunk in session.scalars(select(Chunk).where(Chunk.done_at.is_(None))):
            chunk.lease_expires_at = None
    with claim:
        probing.probe(claim)
    view = commands.get_task(task.id)
    assert view.counts.accepted == CHUNK - 1
    assert [(each.uri, each.reason.partition(" in ")[0]) for each in view.rejected] == [
        ("birds/1.mp4", "Decoding it killed the worker")
    ]
    assert not _videos(task.id)[1].is_rejection_final


@pytest.mark.slow
def test_broken_decoder_uses_no_attempts_and_rejects_nothing(catalog: Settings, post: Post) -> None:
    task = post(videos=2 * CHUNK)
    claim = _plan(task.id)
    with _failing(InstantDecoder, "decode", DecoderUnavailable("the decoder process does not start")):
        for _ in range(2 * state_machine.MAX_ATTEMPTS):
            probing.probe_free_chunks(task.id, "broken")
        with claim:
            probing.probe(claim)
    view = commands.get_task(task.id)
    assert (view.state, view.progress.stage, view.rejected) == ("probing", "waiting for a decoder", [])
    with session_scope(write=True) as session:
        assert session.get_one(Task, task.id).attempts == 0
        session.get_one(Task, task.id).lease_expires_at = None
        for chunk in session.scalars(select(Chunk)):
            assert (chunk.attempts, chunk.run) == (0, None)
            chunk.lease_expires_at = None
    assert probe(task.id).counts.accepted == 2 * CHUNK


def test_worker_of_a_chunk_cannot_write_after_the_task_was_retried(catalog: Settings, post: Post) -> None:
    task = post(videos=CHUNK)
    claim = _plan(task.id)
    chunk = _claim_chunk(task.id, "stale")
    claim.cancel()
    commands.retry_task(task.id)
    with pytest.raises(LeaseLost), chunk.transaction():
        pass
    view = probe(task.id)
    assert (view.progress.stage, view.counts.accepted) == ("waiting", CHUNK)


def test_worker_of_a_deleted_chunk_cannot_write_to_a_later_one(catalog: Settings, post: Post) -> None:
    """SQLite gives the IDs of deleted rows to new ones."""
    former, task = post(videos=CHUNK), post("later", videos=CHUNK)
    _plan(former.id)
    stale = _claim_chunk(former.id, "stale")
    commands.cancel_task(former.id)
    with session_scope(write=True) as session:
        set_state(session, session.get_one(Task, former.id), "cancelled")
    commands.retry_task(former.id)
    for claimed in (task, former):
        _plan(claimed.id)
        chunk = _claim_chunk(claimed.id, "next")
        with pytest.raises(LeaseLost), stale.transaction():
            pass
        with chunk.transaction() as session:
            chunk.complete(session)
        assert lifecycle.read_totals(claimed.id, "probing").unfinished == 0
        with session_scope(write=True) as session:
            session.execute(delete(Chunk))


def test_cancellation_ends_the_chunks_of_all_workers(catalog: Settings, post: Post) -> None:
    task = post(videos=2 * CHUNK)
    claim = _plan(task.id)
    chunk = _claim_chunk(task.id, "helper")
    commands.cancel_task(task.id)
    assert lifecycle.claim_chunk(task.id, "probing", "late") is None
    with pytest.raises(TaskCancelled), chunk, chunk.transaction():
        pass
    with claim:
        probing.probe(claim)
    assert commands.get_task(task.id).state == "cancelled"
    with session_scope() as session:
        assert session.scalars(select(Chunk)).all() == []


def test_chunk_of_an_expired_lease_or_ended_process_belongs_to_the_next_worker(
    catalog: Settings, post: Post
) -> None:
    task = post(videos=CHUNK)
    _plan(task.id)
    dead = _claim_chunk(task.id, "dead")
    assert lifecycle.claim_chunk(task.id, "probing", "early") is None
    _expire_chunks(task.id)
    chunk = _claim_chunk(task.id, "next")
    assert chunk.number == dead.number
    with pytest.raises(LeaseLost), dead.transaction():
        pass
    with chunk.transaction() as session:
        chunk.complete(session)
    assert lifecycle.read_totals(task.id, "probing").unfinished == 0
    other = post("other", videos=CHUNK)
    _plan(other.id)
    _claim_chunk(other.id, celery_worker.worker_name())
    release_leases(os.getpid())  # the process has ended
    _claim_chunk(other.id, "next")


def test_free_chunks_of_a_claimed_task_get_a_message(with_broker: redis.Redis, post: Post) -> None:
    task = post(videos=2 * CHUNK)
    with_broker.flushall()
    _plan(task.id)
    assert lifecycle.send_due() == (task.id,)
    assert lifecycle.send_due() == ()  # one message is enough as long as no worker takes it
    with_broker.flushall()
    for _ in range(2):
        _claim_chunk(task.id, "worker")
    assert lifecycle.send_due() == ()


def test_interrupted_probing_resumes_with_the_unfinished_chunks(
    catalog: Settings, post: Post, tmp_path: Path
) -> None:
    task = post(videos=3 * CHUNK)
    InstantDecoder.log = tmp_path / "decoded"
    claim = _plan(task.id)
    probing.probe_free_chunks(task.id, "helper")
    assert lifecycle.read_totals(task.id, "probing").remaining == 0
    claim.release()
    assert probe(task.id).counts.accepted == 3 * CHUNK
    assert len(InstantDecoder.decoded_by("test")) == 3 * CHUNK
