"""Validate a release with its probe queries before it serves searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from index.arrays import Vectors
from index.errors import ShardMissing, ShardStoreError
from index.shards.searchable_shard import SearchableShard
from models.errors import ReleaseError
from models.releases.release_files import ProbeQueries, read_probes

Encode = Callable[[Sequence[tuple[str, str, str]]], Sequence[Vectors]]

# Maximum difference between a unit query vector, or any of its cosines, and the worker's. Another device in float32 or
# half-precision storage differs by about 0.001, a twelve-block text tower in bfloat16 by about 0.02, a compiled one,
# which rounds weights, by about 0.03, and another task's maps by 0.15 and more.
PROBE_TOLERANCE = 0.1
MAX_SCANNED_ROWS = 10**6  # a larger shard is not searched for probes; only a few of its rows are read


def check_probes(
    folder: Path, release: str, encode: Encode, shards: Mapping[str, SearchableShard], modes: Sequence[str]
) -> None:
    """Compare a release's answers to its probe queries with those recorded when it was learned.

    Encodes one batch of short texts and searches only the newest shard. Tasks without a served shard and deleted
    vectors are skipped.

    Args:
        folder: Folder of the release. A release without probes is accepted.
        encode: Computes the query vector ``float32 [dim]`` of each (text, mode, task).
        shards: Served shards by task ID.
        modes: Query modes that the release offers.

    Raises:
        ReleaseError: An answer differs by more than :data:`PROBE_TOLERANCE`; names the release, probe and difference.
    """
    probes = read_probes(folder)
    if probes is None:
        return
    if probes.mode not in modes:
        raise ReleaseError(
            f"release {release[:12]} has probes for mode {probes.mode!r}, which it does not offer"
        )
    rows = [row for row, task in enumerate(probes.tasks) if task in shards]
    vectors = encode([(probes.texts[row], probes.mode, probes.tasks[row]) for row in rows])
    for row, vector in zip(rows, vectors, strict=True):
        task = probes.tasks[row]
        is_newest = task == probes.tasks[0]
        try:
            difference = max(
                _vector_difference(probes, row, vector),
                _score_difference(probes, row, vector, shards[task], is_newest),
            )
        except ShardStoreError:  # the shard is broken, not the release; a search sets the shard aside
            continue
        if not difference <= PROBE_TOLERANCE:
            raise ReleaseError(
                f"release {release[:12]} doesn't answer as it did when it was learned: probe {row} "
                f"({probes.texts[row]!r} in task {task}, mode {probes.mode}) differs by "
                f"{difference:.3f}, and {PROBE_TOLERANCE} is allowed; compare versions and precision of "
                "worker and server, or learn the task again"
            )


def _vector_difference(probes: ProbeQueries, row: int, vector: Vectors) -> float:
    """Measure the Euclidean distance between a probe's query vector and the recorded one."""
    expected = probes.vectors[row].astype(np.float32)
    return float(np.linalg.norm(vector - expected)) if vector.shape == expected.shape else np.inf


def _score_difference(
    probes: ProbeQueries, row: int, vector: Vectors, shard: SearchableShard, is_searched: bool
) -> float:
    """Find the largest score difference over a probe's recorded vectors and, if searched, its ranks."""
    has_vector = probes.ids[row] >= 0
    ids, expected = probes.ids[row][has_vector], probes.scores[row][has_vector]
    try:
        stored = shard.vectors(ids)
    except ShardMissing:
        present = [number for number, vector_id in enumerate(ids) if _contains(shard, vector_id)]
        ids, expected = ids[present], expected[present]
        stored = shard.vectors(ids)
    if not len(ids):
        return 0.0
    difference = float(np.abs(stored @ vector - expected).max())
    if is_searched and shard.count <= MAX_SCANNED_ROWS:
        # Segments appended later can only add nearer vectors, so scores may rise but not fall.
        scores = shard.search(vector, len(ids)).scores
        difference = max(difference, float((expected - scores).max()))
    return difference


def _contains(shard: SearchableShard, vector_id: np.int64) -> bool:
    """Check whether a shard contains a vector. Vectors removed by compaction have no tombstone."""
    try:
        shard.vectors(np.array([vector_id]))
    except ShardMissing:
        return False
    return True
