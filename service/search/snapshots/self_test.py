"""Check that a release answers its self-test queries as it did when it was learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from index.arrays import Vectors, find_ids
from index.errors import ShardStoreError
from index.shards.vector_store import SearchableShard
from models.errors import ReleaseError
from models.releases.release_files import SelfTest, read_self_test

Encode = Callable[[Sequence[tuple[str, str, str]]], Sequence[Vectors]]

# Maximum difference between a unit query vector, or any of its cosines, and the worker's. Another device in float32 or
# half-precision storage differs by about 0.001, a twelve-block text tower in bfloat16 by about 0.02, a compiled one,
# which rounds weights, by about 0.03, and another task's maps by 0.15 and more.
SELF_TEST_TOLERANCE = 0.1
MAX_SCANNED_ROWS = 10**6  # of a larger shard, a self-test reads only a few rows


def check_self_test(
    folder: Path, release: str, encode: Encode, shards: Mapping[str, SearchableShard], modes: Sequence[str]
) -> None:
    """Compare a release's answers to its self-test queries with those recorded when it was learned.

    Encodes one batch of short texts and searches only the newest shard. Tasks without a served shard and deleted
    vectors are skipped, and a release without such queries is accepted.

    Raises ReleaseError if an answer differs by more than :data:`SELF_TEST_TOLERANCE`.

    Args:
        encode: Computes the query vector ``float32 [dim]`` of each (text, mode, task).
        modes: Query modes that the release offers.
    """
    self_test = read_self_test(folder)
    if self_test is None:
        return
    if self_test.mode not in modes:
        raise ReleaseError(
            f"release {release[:12]} has self-test queries for mode {self_test.mode!r}, which it does not offer"
        )
    rows = [row for row, task in enumerate(self_test.tasks) if task in shards]
    vectors = encode([(self_test.texts[row], self_test.mode, self_test.tasks[row]) for row in rows])
    for row, vector in zip(rows, vectors, strict=True):
        task, expected = self_test.tasks[row], self_test.vectors[row].astype(np.float32)
        is_newest = task == self_test.tasks[0]
        try:
            difference = _score_difference(self_test, row, vector, shards[task], is_searched=is_newest)
            is_comparable = vector.shape == expected.shape
            difference = max(
                float(np.linalg.norm(vector - expected)) if is_comparable else np.inf, difference
            )
        except ShardStoreError:  # the shard is broken, not the release; a search sets the shard aside
            continue
        if not difference <= SELF_TEST_TOLERANCE:
            raise ReleaseError(
                f"release {release[:12]} doesn't answer as it did when it was learned: self-test query {row} "
                f"({self_test.texts[row]!r} in task {task}, mode {self_test.mode}) differs by "
                f"{difference:.3f}, and {SELF_TEST_TOLERANCE} is allowed; compare versions and precision of "
                "worker and server, or learn the task again"
            )


def _score_difference(
    self_test: SelfTest, row: int, vector: Vectors, shard: SearchableShard, *, is_searched: bool
) -> float:
    """Find a query's largest score difference over its recorded vectors and, if the shard is searched, its ranks."""
    is_stored, _ = find_ids(shard.ids, self_test.ids[row])  # missing ranks have the ID −1
    ids, expected = self_test.ids[row][is_stored], self_test.scores[row][is_stored]
    if not len(ids):
        return 0.0
    stored = shard.vectors(ids)
    difference = float(np.abs(stored @ vector - expected).max())
    if is_searched and shard.count <= MAX_SCANNED_ROWS:
        # Segments appended later can only add nearer vectors, so scores may rise but not fall.
        scores = shard.search(vector, len(ids)).scores
        difference = max(difference, float((expected - scores).max()))
    return difference
