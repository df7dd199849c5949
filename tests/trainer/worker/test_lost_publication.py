"""A publication whose transaction was lost with the database: the task's previous owner publishes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cinestrata_schemas.tasks import AppendSpec
from index.shard_store import ShardStore
from service.catalog.database import now, session_scope
from service.catalog.tables import Task
from service.core.settings import settings
from service.tasks import commands, lifecycle
from tests.claimed_probing import probe
from tests.trainer.worker.conftest import write_video
from tests.trainer.worker.library_state import open_store
from trainer.worker import append_job, learning_job


@pytest.fixture
def lose_transaction(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """``lose_transaction(step, task)``: when the store is about to do ``step``, the database ends the transaction of
    the publication, as it does when it restarts, and the task is given to another worker."""

    def make(step: str, task: str) -> None:
        original = getattr(ShardStore, step)

        def lose(store: ShardStore, *given: Any, **fields: Any) -> Any:
            monkeypatch.setattr(ShardStore, step, original)
            with session_scope(write=True) as session:
                ended = session.scalars(
                    text(
                        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
                        "WHERE state = 'idle in transaction' AND datname = current_database()"
                    )
                ).all()
                assert ended == [True]
                session.get_one(Task, task).lease_expires_at = now(session) - timedelta(seconds=1)
            assert lifecycle.reconcile().recovered == (task,)
            return original(store, *given, **fields)

        monkeypatch.setattr(ShardStore, step, lose)

    return make


def test_previous_owner_publishes_nothing(
    library: Any,
    tmp_path: Path,
    settings_factory: Callable[..., Any],
    post_videos: Callable[..., str],
    lose_transaction: Callable[[str, str], None],
) -> None:
    settings_factory(tmp_path, "postgresql", frames=2, torch_threads=1, lease_seconds=600)
    task = post_videos("day", videos=2, tests=0, method="zero_shot", settings={})
    lose_transaction("publish", task)
    learning_job.run_learning_job(task)
    assert task not in open_store().manifest().shards
    learning_job.run_learning_job(task)
    assert commands.get_task(task).state == "ready"

    write_video(settings().media_root / "new" / "red.mp4", "red")
    spec = AppendSpec.model_validate({"videos": [{"uri": "new/red.mp4"}]})
    append = commands.append_videos(task, spec).task.id
    probe(append)
    lose_transaction("append", append)
    append_job.run_append_job(append)
    assert len(open_store().manifest().segments(task)) == 1
    append_job.run_append_job(append)
    assert commands.get_task(append).state == "ready"
    assert len(open_store().manifest().segments(task)) == 2
