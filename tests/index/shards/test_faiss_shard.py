"""Shards in files: searches equal numpy, and entries that contradict the files raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from index.errors import ShardCorrupt
from index.files.manifest_format import SegmentEntry
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import FaissShard, Segment


def open_shard(store: ShardStore, entry: SegmentEntry) -> FaissShard:
    return FaissShard([(store.shard_folder(entry.id), entry)], np.empty(0, np.int64), store.segment_cache)


@pytest.mark.parametrize("form", [list, set, iter, lambda ids: np.array(list(ids), np.int64)])
def test_exclude_accepts_any_iterable(
    store: ShardStore, write: Callable, unit: Callable, form: Callable[[Iterable[int]], Any]
) -> None:
    _, entry = write(store, "t", range(300, 306))
    shard = open_shard(store, entry)
    query = unit(1, seed=9)[0]
    everything = shard.search(query, 6).ids.tolist()
    assert shard.search(query, 6, exclude=form([everything[0], 5, 10**9])).ids.tolist() == everything[1:]
    assert shard.search(query, 6, exclude=form([0, 1])).ids.tolist() == everything
    assert shard.search(query, 6, exclude=form([])).ids.tolist() == everything
    assert shard.search(query, 6, exclude=form(everything)).ids.tolist() == []


@pytest.mark.parametrize("form", [list, iter])
def test_excluded_ids_stay_out_among_ties(store: ShardStore, form: Callable[[Iterable[int]], Any]) -> None:
    # Ties at the end of the result repeat the search with a larger limit, always without the excluded IDs.
    vectors = np.tile(np.eye(4, dtype=np.float32)[:1], (50, 1))
    entry = store.write_shard(task="t", release="r", fingerprint="f", ids=np.arange(50), vectors=vectors)
    hits = open_shard(store, entry).search(vectors[0], 3, exclude=form(range(10)))
    assert hits.ids.tolist() == [10, 11, 12]


@pytest.mark.parametrize("text", ["[]", "nonsense", "{}", "1"])
def test_invalid_description_raises_without_verification(
    store: ShardStore, write: Callable, text: str
) -> None:
    _, entry = write(store, "cooking", range(5))
    path = store.shard_folder(entry.id) / "shard.json"
    path.write_text(text.ljust(path.stat().st_size))
    with pytest.raises(ShardCorrupt, match="task cooking"):
        Segment.open(store.shard_folder(entry.id), entry, verify=False)


@pytest.mark.parametrize(
    "change",
    [
        {"task": "x"},
        {"release": "x"},
        {"fingerprint": "x"},
        {"count": 4},
        {"dim": 9},
        {"first_id": 1},
        {"last_id": 9},
    ],
)
def test_entry_that_contradicts_files_raises(
    store: ShardStore, write: Callable, change: dict[str, Any]
) -> None:
    _, entry = write(store, "t", range(5))
    with pytest.raises(ShardCorrupt, match="contradicts the manifest"):
        Segment.open(store.shard_folder(entry.id), replace(entry, **change))
