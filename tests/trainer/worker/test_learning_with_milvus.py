"""The learning worker where Milvus does not answer: the task says so, keeps what it learned, and can be tried again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.celery_worker import probe
from service.core.settings import settings
from service.storage.vector_store_selection import library_store
from service.tasks import commands
from tests.milvus import Milvus
from trainer.worker import learning_job
from trainer.worker.failure_messages import failure_message

pytest.importorskip("milvus_lite")
pytestmark = pytest.mark.usefixtures("library")


def test_a_task_waits_for_a_store_that_is_away_and_is_learned_when_it_is_back(
    post_videos: Callable[..., str], milvus_server: Milvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uses(uri: str) -> None:
        monkeypatch.setenv("CINESTRATA_VECTOR_STORE", "milvus")
        monkeypatch.setenv("CINESTRATA_MILVUS__URI", uri)
        monkeypatch.setenv("CINESTRATA_MILVUS__TIMEOUT_SECONDS", "3")
        settings.cache_clear()

    uses("http://127.0.0.1:9")
    task = post_videos("day")
    learning_job.run_learning_job(task)
    failed = commands.get_task(task)
    assert failed.state == "failed"
    assert "Milvus at http://127.0.0.1:9" in (failed.error or "")
    assert f"POST /tasks/{task}/retry" in (failed.error_hint or "")
    assert library_store(settings()).manifest().shards == {}
    uses(milvus_server.uri)
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


def test_its_words_name_the_store() -> None:
    from index.errors import StoreUnavailable

    words = failure_message(
        StoreUnavailable("Milvus at http://m:1 could not be reached"), "POST /tasks/t/retry"
    )
    assert words is not None
    assert words.hint == "Bring the store of the vectors back, then POST /tasks/t/retry."
