"""Which videos train, and which are held out to measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Clip", "Splits", "assign_splits", "count"]


@dataclass(frozen=True)
class Clip:
    """An accepted video, as far as splits are concerned. ``split`` is what the user gave."""

    vector_id: int
    content_hash: str
    captioned: bool
    split: str | None


@dataclass(frozen=True)
class Splits:
    """The effective split by vector id. A video without captions that was given none has none: it is only indexed."""

    of: dict[int, str | None]
    held_out: Literal["given", "derived"] | None  # where the test split comes from; None: there is none


def assign_splits(clips: Sequence[Clip], share: float, calibration: float = 0.0) -> Splits:
    """Given splits stay. Where no captioned video was given to the test split, a share of the others is held out.

    Which ones depends on their content alone (lowest hashes first), so the same videos are held out every time,
    in whatever order they come. At least one is held out, and at least one is left to train on.

    Args:
        clips: the accepted videos.
        share: of all captioned videos, 0..1; 0 holds nothing out.
        calibration: of all captioned videos, 0..1; so many of those without a split, rounded down, are neither trained
            on nor held out but validate, where no captioned video was given to the val split.
    """
    splits = _with_test(clips, share)
    if any(c.captioned and c.split == "val" for c in clips):
        return splits
    wanted = int(calibration * sum(c.captioned for c in clips))
    free = sorted(
        (c.content_hash, c.vector_id)
        for c in clips
        if c.captioned and c.split is None and splits.of[c.vector_id] == "train"
    )
    chosen = free[: min(wanted, max(0, len(free) - 1))]  # one is left to train on
    return Splits(splits.of | {vector_id: "val" for _, vector_id in chosen}, splits.held_out)


def _with_test(clips: Sequence[Clip], share: float) -> Splits:
    """Given splits, and a test split where none was given."""
    effective = {c.vector_id: c.split or ("train" if c.captioned else None) for c in clips}
    if any(c.captioned and c.split == "test" for c in clips):
        return Splits(effective, "given")
    captioned = sum(c.captioned for c in clips)
    free = sorted((c.content_hash, c.vector_id) for c in clips if c.captioned and c.split is None)
    keep_one = 0 if any(c.captioned and c.split == "train" for c in clips) else 1
    wanted = min(max(1, int(share * captioned)), len(free) - keep_one) if share > 0 and captioned >= 2 else 0
    if wanted <= 0:
        return Splits(effective, None)
    return Splits(effective | {vector_id: "test" for _, vector_id in free[:wanted]}, "derived")


def count(videos: int, rejected: int, splits: Splits) -> dict[str, int]:
    """The fields of ``VideoCounts``."""
    by = Counter(splits.of.values())
    return {
        "videos": videos,
        "accepted": len(splits.of),
        "rejected": rejected,
        "train": by["train"],
        "val": by["val"],
        "test": by["test"],
    }
