"""Changes of index and catalog wait for the index with a limit, and before they lock the catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from service.core.errors import TaskCancelled, Unavailable
from service.core.settings import Settings
from service.library.deletion import delete_task, delete_videos
from service.library.release_serving import NEWEST, serve_release
from service.storage import index_manifest
from service.storage.index_manifest import index_lock
from service.tasks import lifecycle
from tests.catalog_rows import add_release_and_shard
from tests.index_locking import compaction, require_unlocked_catalog
from tests.service.search.caption_library import Library

Change = Callable[[], Any]

DELETIONS: dict[str, Change] = {
    "video": lambda: delete_videos(["birds-1"]),
    "task": lambda: delete_task("tsk_birds"),
}
CHANGES: dict[str, Change] = {**DELETIONS, "release": lambda: serve_release(NEWEST)}


@pytest.fixture
def published(learning: Library) -> None:
    """Birds and cars, with the rows of the newest release."""
    add_release_and_shard("tsk_cars", learning.store.manifest().shards["tsk_cars"], order=2)


@pytest.mark.parametrize("change", DELETIONS.values(), ids=DELETIONS)
def test_deletion_that_waits_for_the_index_does_not_lock_the_catalog(
    published: None, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = require_unlocked_catalog(monkeypatch)
    change()
    assert waits


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_during_a_compaction_can_be_repeated(
    published: None, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_manifest, "WAIT_SECONDS", 0.1)
    with compaction():
        with pytest.raises(Unavailable, match="compacting") as caught:
            change()
        assert caught.value.headers["Retry-After"]
    change()


def test_worker_waits_for_the_end_of_a_compaction(sqlite_catalog: Settings, post_probed: Callable) -> None:
    claim = lifecycle.claim_training(post_probed().id, "worker")
    assert claim is not None
    with compaction() as finish:

        def tick() -> None:
            claim.tick()
            finish()

        with index_lock(tick), claim.publishing() as publication:
            publication.require_lock()
            publication.completed = True


def test_cancellation_ends_the_wait_of_a_worker(sqlite_catalog: Settings) -> None:
    def cancel() -> None:
        raise TaskCancelled("cancelled")

    with compaction(), pytest.raises(TaskCancelled), index_lock(cancel):
        pytest.fail("took the lock of a compaction")
