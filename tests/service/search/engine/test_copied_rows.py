"""Results have rows from the copy in memory while it is current, and from the catalog otherwise."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from cinestrata_schemas.videos import VideoPatch
from service.library.deletion import delete_videos
from service.library.video_editing import edit_video
from service.search import catalog_mirror
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, Library

PAUSE = threading.Event()


@pytest.fixture
def catalog_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of rows that each read of the catalog asked for."""
    read_rows, counts = catalog_mirror.read_rows, list[int]()

    def read(ids: Sequence[int]) -> dict[int, catalog_mirror.VideoRow]:
        counts.append(len(ids))
        return read_rows(ids)

    monkeypatch.setattr(catalog_mirror, "read_rows", read)
    return counts


@pytest.fixture
def copied(library: Library, service: SearchEngine) -> SearchEngine:
    """Engine of birds and cars, with a current copy of their rows."""
    assert service.snapshots.refresh()
    _copy_rows(service)
    return service


def _copy_rows(service: SearchEngine) -> None:
    while not service.mirror.update(service.snapshots.current()):  # takes at most a share of the time
        PAUSE.wait(0.01)


def _find(service: SearchEngine, text: str) -> dict[str, list[str]]:
    return {result.video_id: result.captions for result in service.search(text, k=20).results}


def test_an_edit_shows_in_the_next_search(copied: SearchEngine, catalog_reads: list[int]) -> None:
    found = _find(copied, BIRDS[0])
    assert catalog_reads == []
    edit_video("birds-0", VideoPatch(captions=["a grey heron"]))
    edited = found | {"birds-0": ["a grey heron"]}
    assert _find(copied, BIRDS[0]) == edited
    assert catalog_reads == [6]
    _copy_rows(copied)
    assert _find(copied, BIRDS[0]) == edited
    assert catalog_reads == [6]


def test_a_deleted_video_is_not_shown_by_a_process_that_has_not_read_the_tombstones(
    copied: SearchEngine, catalog_reads: list[int]
) -> None:
    kept = _find(copied, CARS[1])
    del kept["cars-1"]
    delete_videos(["cars-1"])
    assert _find(copied, CARS[1]) == kept
    _copy_rows(copied)
    assert _find(copied, CARS[1]) == kept
    assert catalog_reads == [6, 6], "the deleted video has no row in the copy"
    copied.snapshots.refresh()
    _copy_rows(copied)
    assert _find(copied, CARS[1]) == kept
    assert catalog_reads == [6, 6]


def test_rows_copied_with_another_version_of_the_shard_are_read_again(
    library: Library, copied: SearchEngine, catalog_reads: list[int]
) -> None:
    library.store.delete([int(copied.snapshots.current().shards["tsk_cars"].ids[1])], task="tsk_cars")
    assert copied.snapshots.refresh()
    found = _find(copied, CARS[1])
    assert catalog_reads == [5]
    _copy_rows(copied)
    assert _find(copied, CARS[1]) == found
    assert catalog_reads == [5]
