"""Helpers of the worker's tests: run and kill jobs, and read the published library and the catalog."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from cinestrata_schemas.tasks import AppendSpec, TaskDetails
from cli.commands.library_checks import check_catalog
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.shard_store import ShardStore
from models.releases.release_state import ReleaseState
from service.catalog.database import now, session_scope
from service.catalog.tables import Chunk, Moment, Recall, Task, Video
from service.core.settings import settings
from service.tasks import commands, lifecycle
from tests.claimed_probing import probe
from tests.trainer.worker.conftest import write_video
from trainer.published_library import Library
from trainer.worker import append_job, learning_job, shared_embedding


def run_job(task: str) -> TaskDetails:
    """Run the learning job of a task; the task afterwards."""
    learning_job.run_learning_job(task)
    return commands.get_task(task)


def learn(task: str) -> TaskDetails:
    """Run the learning job of a task, which must become ready."""
    view = run_job(task)
    assert (view.state, view.error) == ("ready", None)
    return view


def open_store() -> ShardStore:
    """Return the shard store of the library."""
    return ShardStore(settings().index_dir)


def current_release() -> ReleaseState:
    """Return the newest published release, with its training state."""
    store = open_store()
    release = store.manifest().release
    assert release is not None
    return Library(store).release(release)


def shard_vectors(task: str) -> dict[int, np.ndarray]:
    """Return the searchable vectors of a task, by vector ID."""
    store, vectors = open_store(), dict[int, np.ndarray]()
    for key in store.manifest().keys_of(task):
        shard = IndexSnapshot.open(store).shard(key, fingerprint=store.manifest().shards[key].fingerprint)
        vectors |= zip(shard.ids.tolist(), shard.vectors(shard.ids), strict=True)
    return vectors


def catalog_vector_ids(task: str) -> dict[str, int]:
    """Return the vector IDs of a task's videos in the catalog, by video ID."""
    with session_scope() as session:
        query = select(Video.id, Video.vector_id).where(Video.task_id == task)
        return {video: vector_id for video, vector_id in session.execute(query)}


def require_same_videos(*domains: str) -> None:
    """Require that index and catalog have the same videos and moments, and that the checks have no complaint."""
    with session_scope() as session:
        moments = session.execute(select(Video.task_id, Moment.vector_id).join(Moment)).all()
    for domain in domains:
        stored = {
            *catalog_vector_ids(domain).values(),
            *(moment for task, moment in moments if task == domain),
        }
        assert set(shard_vectors(domain)) == stored
    report = audit(open_store())
    assert report.problems == []
    assert list(check_catalog(settings(), report)) == []


def recall_cells() -> dict[tuple[int, int, str, str], Recall]:
    """Return the cells of the recall matrix by release, task, query mode and gallery; release 0 is the unchanged
    backbone.
    """
    with session_scope() as session:
        return {
            (cell.release_order, cell.task_order, cell.mode, cell.gallery): cell
            for cell in session.scalars(select(Recall)).all()
        }


def call_before(patch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], object]) -> None:
    """Run an action before each call of a function."""
    original = getattr(owner, name)

    def call(*given: Any, **options: Any) -> Any:
        action()
        return original(*given, **options)

    patch.setattr(owner, name, call)


def help_once(patch: pytest.MonkeyPatch, task: str) -> list[int]:
    """Let another worker embed all free chunks of a task once they are planned, two videos each.

    Returns the number of unfinished chunks before and after that, once it has happened.
    """
    patch.setattr(shared_embedding, "EMBED_CHUNK_VIDEOS", 2)
    helped: list[int] = []

    def embed_free_chunks() -> None:
        if not helped:
            helped.append(lifecycle.read_totals(task, "indexing").unfinished)
            shared_embedding.embed_free_chunks(task, "helper")
            helped.append(lifecycle.read_totals(task, "indexing").unfinished)

    call_before(patch, shared_embedding, "read_totals", embed_free_chunks)
    return helped


def post_append(
    domain: str, videos: Mapping[str, str], captions: Sequence[str] = (), seconds: int = 1
) -> str:
    """Append new videos, probe them, and return the append's ID.

    Args:
        domain: ID of the domain.
        videos: Content of each video by its name; its ID is ``new-<name>``.
        captions: Captions of each video, in which ``{}`` stands for its content.
        seconds: Duration of the videos.
    """
    entries = []
    for name, content in videos.items():
        write_video(settings().media_root / "new" / f"{name}.mp4", content, seconds)
        texts = [caption.format(content) for caption in captions]
        entries.append({"uri": f"new/{name}.mp4", "id": f"new-{name}", "captions": texts})
    task = commands.append_videos(domain, AppendSpec.model_validate({"videos": entries})).task
    return probe(task.id).id


def run_append(append: str) -> TaskDetails:
    """Run an append job; the append afterwards."""
    append_job.run_append_job(append)
    return commands.get_task(append)


def interrupt(*_: Any, **__: Any) -> None:
    """End a job as the end of its process does, without a handler that catches it."""
    raise KeyboardInterrupt


def die(*_: Any, **__: Any) -> None:
    """End the process without running any ``finally`` or ``except`` block."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_before(owner: Any, name: str) -> Callable[[], None]:
    """Return a patch with which the process dies instead of calling a function."""
    return lambda: setattr(owner, name, die)


def die_after(owner: Any, name: str) -> Callable[[], None]:
    """Return a patch with which the process dies at the end of a function."""

    def patch() -> None:
        original = getattr(owner, name)

        def call(*given: Any, **fields: Any) -> None:
            original(*given, **fields)
            die()

        setattr(owner, name, call)

    return patch


def run_in_process(job: Callable[[str], object], task: str, patch: Callable[[], None] | None = None) -> int:
    """Exit code of a process that runs a job, with a patch; a negative number is a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if patch:
                patch()
            job(task)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def expire_leases(task: str) -> None:
    """Let the leases of the dead worker expire."""
    with session_scope(write=True) as session:
        past = now(session) - timedelta(seconds=1)
        session.get_one(Task, task).lease_expires_at = past
        for chunk in session.scalars(select(Chunk).where(Chunk.lease_owner.is_not(None))):
            chunk.lease_expires_at = past
    lifecycle.reconcile()
