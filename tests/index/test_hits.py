"""Merged hits of several shards equal a brute-force search of all vectors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.arrays import Hit, Hits, merge_hits
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore

# Unit vectors whose inner products are exact in float32, with many exact ties.
_AXES = [sign * row for row in np.eye(4, dtype=np.float32) for sign in (1, -1)]
_HALVES = [np.array(signs, np.float32) / 2 for signs in itertools.product((1, -1), repeat=4)]
_EXACT = np.stack(_AXES + _HALVES)

rows = st.lists(st.integers(0, len(_EXACT) - 1), min_size=1, max_size=12)


def brute_force(
    shards: dict[str, tuple[list[int], np.ndarray]], query: np.ndarray, k: int, excluded: set[int]
) -> list[Hit]:
    """Score all vectors one by one, and sort them by score, order of tasks, and ID."""
    everything = [
        (-float(np.dot(vector.astype(np.float64), query)), order, number, task)
        for order, (task, (ids, vectors)) in enumerate(shards.items())
        for number, vector in zip(ids, vectors, strict=True)
        if number not in excluded
    ]
    return [Hit(task, number, -negative) for negative, _, number, task in sorted(everything)[:k]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contents=st.lists(rows, min_size=1, max_size=4),
    query=st.integers(0, len(_EXACT) - 1),
    k=st.integers(1, 6) | st.integers(1, 60),
    data=st.data(),
)
def test_search_of_any_split_equals_search_of_all_vectors(
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[list[int]],
    query: int,
    k: int,
    data: st.DataObject,
) -> None:
    total = sum(map(len, contents))
    numbers = data.draw(st.permutations(range(10, 10 + total)))
    excluded = data.draw(st.sets(st.integers(8, 12 + total)))
    store = ShardStore(tmp_path_factory.mktemp("index"))
    staged = store.stage()
    (staged / "release.json").write_text("{}")
    release = store.adopt_release(staged)
    shards: dict[str, tuple[list[int], np.ndarray]] = {}
    for position, content in enumerate(contents):
        ids, numbers = numbers[: len(content)], numbers[len(content) :]
        shards[f"task {position}"] = (ids, _EXACT[content])
    entries = [
        store.write_shard(
            task=task, release=release.id, fingerprint="f", ids=np.array(ids), vectors=np.stack(vectors)
        )
        for task, (ids, vectors) in shards.items()
    ]
    store.publish(release=release, shards=entries)
    snapshot = IndexSnapshot.open(store)
    hits = {
        task: snapshot.shard(task, fingerprint="f").search(_EXACT[query], k, excluded)
        for task in snapshot.tasks
    }
    assert merge_hits(hits, k) == brute_force(shards, _EXACT[query], k, excluded)


@settings(max_examples=200, deadline=None)
@given(
    lists=st.lists(
        st.lists(st.tuples(st.integers(-1, 8), st.integers(-3, 3)), max_size=8, unique_by=lambda hit: hit[0]),
        max_size=4,
    ),
    k=st.integers(0, 40),
)
def test_merge_keeps_best_score_of_each_id(lists: list[list[tuple[int, int]]], k: int) -> None:
    hits = {
        f"task {position}": Hits(
            np.array([number for number, _ in ranking], np.int64),
            np.array([score for _, score in ranking], np.float32),
        )
        for position, ranking in enumerate(lists)
    }
    expected: list[Hit] = []
    for negative, order, number in sorted(
        (-score, order, number) for order, ranking in enumerate(lists) for number, score in ranking
    ):
        if number >= 0 and number not in [hit.id for hit in expected]:
            expected.append(Hit(f"task {order}", number, float(-negative)))
    assert merge_hits(hits, k) == expected[:k]
