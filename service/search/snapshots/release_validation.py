"""Whether a release answers its probe queries as it did where it was learned; asked before it takes over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ShardMissing, ShardStoreError
from index.shards.searchable_shard import SearchableShard
from models.errors import ReleaseError
from models.releases.probe_queries import ProbeQueries, read_probes

__all__ = ["TOLERANCE", "check_probes"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
Encode = Callable[[Sequence[tuple[str, str, str]]], Sequence[Vectors]]

# How far a query vector of unit length, and so any cosine of it, may be from what the worker had. float32 on another
# device and stored in half precision is off by about 0.001, a text tower of twelve blocks in bfloat16 by about 0.02.
# Another task's adapters are off by more.
TOLERANCE = 0.05
_SCANNED = 10**6  # a larger shard is not searched for probes; they read a few of its rows


def check_probes(
    folder: Path, release: str, encode: Encode, shards: Mapping[str, SearchableShard], modes: Sequence[str]
) -> None:
    """Ask a release its own probes. Takes one batch of short texts, and searches the newest shard alone.

    Tasks whose shards are not served, and stored vectors that were deleted since, are left out.

    Args:
        folder: of the release; one without probes is accepted.
        release: its id.
        encode: the query vector ``[dim]`` of each (text, mode, task).
        shards: what is served, by task id.
        modes: that the release offers.

    Raises:
        ReleaseError: an answer is another one; names the release, the probe and how far it is off.
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
        newest = task == probes.tasks[0]
        try:
            off = max(_turned(probes, row, vector), _scored(probes, row, vector, shards[task], newest))
        except ShardStoreError:  # the shard is broken, not the release; whoever searches it sets it aside
            continue
        if not off <= TOLERANCE:
            raise ReleaseError(
                f"release {release[:12]} does not answer as it did when it was learned: probe {row} "
                f"({probes.texts[row]!r} in task {task}, mode {probes.mode}) is off by {off:.3f}, and "
                f"{TOLERANCE} is allowed; compare versions and precision of worker and server, or learn the "
                "task again"
            )


def _turned(probes: ProbeQueries, row: int, vector: Vectors) -> float:
    """Length of the difference of two query vectors."""
    expected = probes.vectors[row].astype(np.float32)
    return float(np.linalg.norm(vector - expected)) if vector.shape == expected.shape else np.inf


def _scored(probes: ProbeQueries, row: int, vector: Vectors, shard: SearchableShard, nearest: bool) -> float:
    """Greatest difference of a score: of the probe's stored vectors, and of what a search ranks in their places."""
    anchored = probes.ids[row] >= 0
    ids, expected = probes.ids[row][anchored], probes.scores[row][anchored]
    try:
        stored = shard.vectors(ids)
    except ShardMissing:
        left = [number for number, id in enumerate(ids) if _holds(shard, id)]
        ids, expected = ids[left], expected[left]
        stored = shard.vectors(ids)
    if not len(ids):
        return 0.0
    off = float(np.abs(stored @ vector - expected).max())
    if nearest and shard.count <= _SCANNED:
        # Segments that came later may only have brought nearer ones.
        found = shard.search(vector, len(ids)).scores
        off = max(off, float((expected - found).max()))
    return off


def _holds(shard: SearchableShard, id: np.int64) -> bool:
    """Whether a vector is there still. One that was deleted and compacted away is in no list of deletions."""
    try:
        shard.vectors(np.array([id]))
    except ShardMissing:
        return False
    return True
