"""Learning into Milvus: a task fails with a hint while Milvus is unreachable, and succeeds when it is retried."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cinestrata_schemas.problems import Action
from service.celery_worker import probe
from service.core.settings import settings
from service.storage import index_manifest
from service.storage.index_manifest import library_store
from service.tasks import commands
from tests.milvus import Milvus
from trainer.worker import learning_job

pytest.importorskip("milvus_lite")
pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.slow
def test_task_fails_without_milvus_and_is_learned_on_retry(
    post_videos: Callable[..., str], milvus_server: Milvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def configure_milvus(uri: str) -> None:
        monkeypatch.setenv("CINESTRATA_VECTOR_STORE", "milvus")
        monkeypatch.setenv("CINESTRATA_MILVUS__URI", uri)
        monkeypatch.setattr(index_manifest, "MILVUS_TIMEOUT_SECONDS", 3)
        settings.cache_clear()

    configure_milvus("http://127.0.0.1:9")
    task = post_videos("day")
    learning_job.run_learning_job(task)
    failed = commands.get_task(task)
    assert failed.state == "failed"
    assert "Milvus at http://127.0.0.1:9" in (failed.error or "")
    assert failed.error_hint == "Bring the vector store back, then retry the task."
    assert failed.remedy == Action(name="retry_task", id=task)
    assert library_store(settings()).manifest().shards == {}
    configure_milvus(milvus_server.uri)
    commands.retry_task(task)
    probe(task)
    learning_job.run_learning_job(task)
    view = commands.get_task(task)
    assert (view.state, view.error) == ("ready", None)
    store = library_store(settings())
    (shard,) = store.manifest().shards.values()
    assert shard.place.startswith("milvus:")
    store.check(shard, "bytes")
    assert not list(settings().index_dir.rglob("*.faiss"))
