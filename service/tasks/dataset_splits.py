"""Train, validation and test splits of a task's videos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SplitCandidate:
    """The properties of an accepted video that determine its split. ``split`` is the one given by the user."""

    vector_id: int
    content_hash: str
    captioned: bool
    split: str | None


@dataclass(frozen=True)
class Splits:
    """Effective splits of a task.

    Attributes:
        by_vector_id: Split of each video; None for a video without captions and without a given split, which is only
            indexed.
        held_out: Origin of the test split; None if there is none.
    """

    by_vector_id: dict[int, str | None]
    held_out: Literal["given", "derived"] | None


def assign_splits(
    candidates: Sequence[SplitCandidate], test_share: float, calibration_share: float = 0.0
) -> Splits:
    """Keep given splits, and derive a test and a validation split where none is given.

    The choice depends on content alone (lowest hashes first), so the same videos are held out every time, in any order.
    A derived test split has at least one video and leaves at least one for training.

    Args:
        candidates: Accepted videos of the task.
        test_share: Share of the captioned videos, 0..1; 0 derives no test split.
        calibration_share: Share of the captioned videos, 0..1, rounded down, that validates if no captioned video has
            the given split ``val``; taken from the training videos without a given split.
    """
    splits = _assign_test(candidates, test_share)
    if any(c.captioned and c.split == "val" for c in candidates):
        return splits
    wanted = int(calibration_share * sum(c.captioned for c in candidates))
    free = sorted(
        (c.content_hash, c.vector_id)
        for c in candidates
        if c.captioned and c.split is None and splits.by_vector_id[c.vector_id] == "train"
    )
    chosen = free[: min(wanted, max(0, len(free) - 1))]  # one is left for training
    return Splits(splits.by_vector_id | {vector_id: "val" for _, vector_id in chosen}, splits.held_out)


def _assign_test(candidates: Sequence[SplitCandidate], share: float) -> Splits:
    """Keep given splits, and derive a test split where none is given."""
    effective = {c.vector_id: c.split or ("train" if c.captioned else None) for c in candidates}
    if any(c.captioned and c.split == "test" for c in candidates):
        return Splits(effective, "given")
    captioned = sum(c.captioned for c in candidates)
    free = sorted((c.content_hash, c.vector_id) for c in candidates if c.captioned and c.split is None)
    keep_one = 0 if any(c.captioned and c.split == "train" for c in candidates) else 1
    wanted = min(max(1, int(share * captioned)), len(free) - keep_one) if share > 0 and captioned >= 2 else 0
    if wanted <= 0:
        return Splits(effective, None)
    return Splits(effective | {vector_id: "test" for _, vector_id in free[:wanted]}, "derived")
