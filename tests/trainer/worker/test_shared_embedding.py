"""Embedding in chunks: parts of several workers, killed workers, damaged parts."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import select, update

from service.catalog.database import now, session_scope
from service.catalog.tables import Chunk, Task
from service.core.errors import LeaseLost, Unavailable
from service.core.settings import settings
from service.tasks import commands, lifecycle
from service.tasks.lifecycle import chunks, state_machine
from tests.index.disk_faults import flip_byte
from tests.trainer.worker.library_state import (
    catalog_vector_ids,
    die,
    die_before,
    expire_leases,
    learn,
    post_append,
    run_append,
    run_in_process,
    run_job,
    shard_vectors,
)
from trainer import video_embedding
from trainer.methods import base
from trainer.methods.zero_shot import ZeroShot
from trainer.worker import append_job, catalog_reader, job_environment, learning_job, shared_embedding
from trainer.worker.shared_embedding import PartFolder

Post = Callable[..., str]

pytestmark = pytest.mark.usefixtures("library")

VIDEOS, CHUNK = 6, 2


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small chunks; collects the number of videos in each call of this process's encoder."""
    counts: list[int] = []
    for module in (shared_embedding, append_job, base):
        original = module.embed_clips

        def count(encode: Any, clips: Any, original: Any = original, **options: Any) -> Any:
            if not isinstance(
                getattr(encode, "__self__", None), ZeroShot
            ):  # of the comparison with zero-shot
                counts.append(len(clips))
            return original(encode, clips, **options)

        monkeypatch.setattr(module, "embed_clips", count)
    monkeypatch.setattr(shared_embedding, "EMBED_CHUNK_VIDEOS", CHUNK)
    return counts


@pytest.fixture
def task(post_videos: Post) -> str:
    """ID of a task of three chunks."""
    return post_videos("day", videos=VIDEOS)


def _expire_chunks() -> None:
    """Let the leases of all chunks expire."""
    with session_scope(write=True) as session:
        past = now(session) - timedelta(seconds=1)
        session.execute(update(Chunk).where(Chunk.lease_owner.is_not(None)).values(lease_expires_at=past))


def _after_planning(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Call a function once, as soon as the owner of the task has planned its chunks."""

    def run_once() -> None:
        monkeypatch.setattr(shared_embedding, "send_due", lambda: None)
        work()

    monkeypatch.setattr(shared_embedding, "send_due", run_once)


def _expected(post_videos: Post, tmp_path: Path, settings_factory: Callable[..., Any]) -> np.ndarray:
    """Return the vectors of the same videos, embedded without chunks in another library."""
    settings_factory(tmp_path / "whole", frames=2, torch_threads=1, lease_seconds=600)
    vectors = shard_vectors(task := learn(post_videos("day")).id)
    return np.stack([vectors[i] for i in sorted(catalog_vector_ids(task).values())])


def _vectors(task: str) -> np.ndarray:
    vectors = shard_vectors(task)
    assert set(vectors) == set(catalog_vector_ids(task).values())
    return np.stack([vectors[i] for i in sorted(vectors)])


@pytest.mark.slow
def test_parts_of_two_workers_give_the_vectors_of_one(
    task: str,
    post_videos: Post,
    embedded: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    settings_factory: Callable[..., Any],
) -> None:
    owners: list[str] = []
    original = shared_embedding.claim_chunk

    def claim(task_id: str, stage: Any, owner: str, **options: Any) -> Any:
        chunk = original(task_id, stage, owner, **options)
        owners.extend([owner] if chunk else [])
        return chunk

    for module in (shared_embedding, chunks):
        monkeypatch.setattr(module, "claim_chunk", claim)
    monkeypatch.setattr(video_embedding, "_BATCH", CHUNK)  # as in production, a chunk ends with a batch
    monkeypatch.setattr(shared_embedding, "_TURN_SECONDS", -1)  # the other worker has its turn for one chunk
    _after_planning(monkeypatch, lambda: shared_embedding.embed_free_chunks(task, "other"))
    learn(task)
    assert owners[0] == "other"
    assert len(owners) == VIDEOS // CHUNK
    assert len(set(owners)) == 2
    assert embedded == [CHUNK] * (VIDEOS // CHUNK)
    vectors = _vectors(task)
    assert not (settings().checkpoints_dir / task).exists()
    with session_scope() as session:
        assert session.scalars(select(Chunk)).all() == []
    monkeypatch.setattr(shared_embedding, "EMBED_CHUNK_VIDEOS", 256)
    np.testing.assert_array_equal(vectors, _expected(post_videos, tmp_path, settings_factory))


@pytest.mark.slow
def test_killed_worker_loses_one_chunk(
    task: str, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die_in_second_part() -> None:
        write = PartFolder.write

        def write_first(self: PartFolder, number: int, *rest: Any) -> str:
            return die() if number == 1 else write(self, number, *rest)

        PartFolder.write = write_first  # type: ignore[method-assign]

    def run_worker_that_dies() -> None:
        embed = partial(shared_embedding.embed_free_chunks, owner="dies")
        assert run_in_process(embed, task, die_in_second_part) == -signal.SIGKILL
        _expire_chunks()

    _after_planning(monkeypatch, run_worker_that_dies)
    learn(task)
    # All but the first, which the killed worker had stored.
    assert embedded == [CHUNK] * (VIDEOS // CHUNK - 1)
    assert len(_vectors(task)) == VIDEOS


@pytest.mark.slow
def test_killed_owner_finds_its_parts_again(task: str, embedded: list[int]) -> None:
    killed = die_before(shared_embedding, "_join_parts")
    assert run_in_process(learning_job.run_learning_job, task, killed) == -signal.SIGKILL
    expire_leases(task)
    learn(task)
    assert embedded == []
    assert len(_vectors(task)) == VIDEOS


@pytest.mark.parametrize("damage", ["altered", pytest.param("missing", marks=pytest.mark.slow)])
def test_damaged_part_is_embedded_again(
    damage: str, task: str, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage_first_part() -> None:
        monkeypatch.setattr(shared_embedding, "_TURN_SECONDS", -1)
        shared_embedding.embed_free_chunks(task, "other")
        (part,) = settings().checkpoints_dir.rglob("000000.*.safetensors")
        if damage == "missing":
            part.unlink()
        else:
            flip_byte(part)

    _after_planning(monkeypatch, damage_first_part)
    learn(task)
    assert embedded == [CHUNK] * (VIDEOS // CHUNK + 1)
    assert len(_vectors(task)) == VIDEOS


def _plan(task: str) -> None:
    """Claim a training, and plan the embedding of its four videos."""
    claim = lifecycle.claim_training(task, "owner")
    assert claim is not None
    with claim.transaction() as session:
        lifecycle.plan_chunks(session, task, "indexing", [1, 2, 3, 4], CHUNK, run="r")


def test_unfinished_chunk_of_a_dead_worker_is_no_progress(task: str, embedded: list[int]) -> None:
    _plan(task)
    dead = lifecycle.claim_chunk(task, "indexing", "dies")
    assert dead is not None
    with dead.transaction() as session:
        dead.count_finished(session, 1)
    assert lifecycle.read_totals(task, "indexing").remaining == 3
    _expire_chunks()
    assert lifecycle.claim_chunk(task, "indexing", "next") is not None
    assert lifecycle.read_totals(task, "indexing").remaining == 4


def test_chunks_that_fail_for_a_broken_worker_are_embedded_by_the_owner(
    task: str, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(task_id: str) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def fail_often() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(shared_embedding, "task_backbone", refuse)
            for _ in range(VIDEOS // CHUNK * state_machine.MAX_ATTEMPTS):
                shared_embedding.embed_free_chunks(task, "broken")
        assert lifecycle.claim_chunk(task, "indexing", "other") is None, "no attempt is left"

    _after_planning(monkeypatch, fail_often)
    learn(task)
    assert embedded == [CHUNK] * (VIDEOS // CHUNK)
    assert len(_vectors(task)) == VIDEOS


def test_error_of_a_chunk_that_fails_for_the_owner_is_the_reason_of_the_failed_task(
    task: str, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PartFolder.write

    def refuse_first(self: PartFolder, number: int, *rest: Any) -> str:
        if number == 0:
            raise OSError(28, "No space left on device")
        return write(self, number, *rest)

    def fail_often() -> None:
        for _ in range(state_machine.MAX_ATTEMPTS):
            shared_embedding.embed_free_chunks(task, "broken")

    monkeypatch.setattr(PartFolder, "write", refuse_first)
    _after_planning(monkeypatch, fail_often)
    view = run_job(task)
    assert view.state == "failed"
    assert "No space left on device" in (view.error or "")
    assert len(embedded) == state_machine.MAX_ATTEMPTS + VIDEOS // CHUNK, "the owner processes all chunks"
    assert commands.retry_task(task).state == "queued"


def _post_append(domain: str) -> str:
    """Return the ID of a probed append of three videos."""
    return post_append(domain, {name: name for name in ("red", "green", "blue")})


def test_append_is_embedded_in_chunks(
    learned_task: str, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(shard_vectors(learned_task))
    task = _post_append(learned_task)
    _after_planning(monkeypatch, lambda: shared_embedding.embed_free_chunks(task, "other"))
    assert run_append(task).state == "ready"
    assert embedded == [2, 1]
    assert len(set(shard_vectors(learned_task)) - before) == 3


@pytest.mark.slow
def test_worker_that_lost_its_chunk_cannot_complete_it(task: str, embedded: list[int]) -> None:
    _plan(task)
    slow = lifecycle.claim_chunk(task, "indexing", "slow")
    assert slow is not None
    _expire_chunks()
    fast = lifecycle.claim_chunk(task, "indexing", "fast")
    assert fast is not None
    folder = PartFolder(settings().checkpoints_dir / task, "r")
    folder.prepare(None)
    ids, vectors = np.array([1, 2]), np.ones((2, 4), np.float32)
    checksum = folder.write(0, fast.token, ids, vectors)
    folder.write(0, slow.token, ids, -vectors)
    with fast.transaction() as session:
        fast.complete(session, checksum=checksum)
    with pytest.raises(LeaseLost), slow.transaction():
        pass
    part = folder.read(0, fast.token, checksum)
    assert part is not None
    assert (part[1] == vectors).all()


@pytest.mark.slow
def test_training_that_begins_keeps_the_parts_of_an_append(
    learned_task: str, post_videos: Post, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training removes the checkpoints of other tasks, and appends are embedded at the same time."""
    task, training = _post_append(learned_task), post_videos("night", videos=2, captions=0)
    _after_planning(monkeypatch, lambda: run_job(training))
    view = run_append(task)
    assert (view.state, view.error) == ("ready", None)
    assert embedded.count(2) + embedded.count(1) == len(embedded)


def test_owner_that_lost_its_task_keeps_the_parts_of_the_next_one(task: str, embedded: list[int]) -> None:
    claim = lifecycle.claim_training(task, "slow")
    assert claim is not None
    clips = catalog_reader.load_clips(task, job_environment.task_backbone(task))
    with session_scope(write=True) as session:
        session.get_one(Task, task).lease_expires_at = now(session) - timedelta(seconds=1)
    assert lifecycle.claim_training(task, "next") is not None
    folder = PartFolder(settings().checkpoints_dir / task, "next")
    folder.prepare(None)
    checksum = folder.write(0, 1, np.array([1]), np.ones((1, 4), np.float32))
    with pytest.raises(LeaseLost):
        shared_embedding.embed_shared(claim, clips, lambda frames: frames, "other encoder")
    assert folder.read(0, 1, checksum) is not None
    assert embedded == []


def test_outage_of_the_catalog_during_a_chunk_does_not_stop_it(
    learned_task: str, embedded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = _post_append(learned_task)

    def fail(*_: Any) -> None:
        raise Unavailable("The catalog database is unreachable.")

    monkeypatch.setattr(shared_embedding, "_SAVE_SECONDS", -1)
    monkeypatch.setattr(lifecycle.ChunkClaim, "count_finished", fail)
    assert run_append(task).state == "ready"
    assert embedded == [2, 1]
