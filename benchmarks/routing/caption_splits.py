"""Read captions from FFA + TAME's published splits, grouped by task.

A split's file contains a list of tasks. Each task has the fields ``train`` and ``val``, objects from category to a list
of clips with ``video_id`` and, if published, ``caption``. The split named ``val`` is the test split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from benchmarks.errors import ProtocolError, validation_summary

_FOLDS = 2


@dataclass(frozen=True)
class LabeledCaption:
    """A caption and its task's position."""

    text: str
    task: int
    video: str


@dataclass(frozen=True)
class CaptionFold:
    """Captions that define the tasks, and captions to route."""

    train: tuple[LabeledCaption, ...]
    test: tuple[LabeledCaption, ...]


class _Clip(BaseModel):
    model_config = ConfigDict(extra="ignore")

    video_id: str
    caption: str | None = None


class _Task(BaseModel):
    model_config = ConfigDict(extra="ignore")

    train: dict[str, list[_Clip]]
    val: dict[str, list[_Clip]]


def read_captions(path: Path) -> CaptionFold:
    """Read a file's training and test captions; the training captions are empty if the file has none.

    Raises:
        ProtocolError: The file cannot be read, has another format, or has fewer than two tasks with captions.
    """
    try:
        tasks = TypeAdapter(list[_Task]).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        reason = validation_summary(error) if isinstance(error, ValidationError) else str(error)
        raise ProtocolError(
            f"{path} is not a list of tasks with train and val captions: {reason[:300]}"
        ) from error
    parts = [
        tuple(
            LabeledCaption(clip.caption, position, clip.video_id)
            for position, task in enumerate(tasks)
            for clips in getattr(task, split).values()
            for clip in clips
            if clip.caption
        )
        for split in ("train", "val")
    ]
    if len({caption.task for caption in parts[1]}) < 2:
        raise ProtocolError(
            f"{path} has test captions of fewer than two tasks; give a split of several tasks"
        )
    return CaptionFold(*parts)


def caption_folds(captions: CaptionFold, seed: int = 0) -> Iterator[CaptionFold]:
    """Yield the split itself, or two folds over the test captions' videos if there are no training captions."""
    if captions.train:
        yield captions
        return
    videos = sorted({(caption.task, caption.video) for caption in captions.test})
    order = np.random.default_rng(seed).permutation(len(videos))
    fold_of = {videos[video]: position % _FOLDS for position, video in enumerate(order)}
    for fold in range(_FOLDS):
        inside = [fold_of[caption.task, caption.video] == fold for caption in captions.test]
        yield CaptionFold(
            tuple(c for c, chosen in zip(captions.test, inside, strict=True) if not chosen),
            tuple(c for c, chosen in zip(captions.test, inside, strict=True) if chosen),
        )
