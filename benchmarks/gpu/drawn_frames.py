"""Videos without files: random frames in a learner's cache, and captions for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainer.task_data import Clip, TaskData

_SUBJECTS = ("taxi", "boat", "dog", "kite", "lamp", "train", "bird", "clock")
_COLORS = ("red", "blue", "green", "white", "black", "yellow")
_PLACES = ("harbour", "market", "field", "station", "kitchen", "garden", "bridge")


def make_captions(count: int) -> list[str]:
    """Write distinct captions: three words that vary, and a number."""
    return [
        f"a {_COLORS[n % 6]} {_SUBJECTS[n % 8]} moves through the {_PLACES[n % 7]}, take {n}"
        for n in range(count)
    ]


def write_task(
    folder: Path, *, videos: int, frames: int, size: int, captions: Sequence[str], name: str = "drawn"
) -> TaskData:
    """Write a task of training videos with random frames.

    Args:
        folder: Folder for the frames, ``uint8 [frames, size, size, 3]`` per video.
        captions: Captions to distribute over the videos; at least one per video.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clips = []
    for number in range(videos):
        path = folder / f"{frames}x{size}-{number}.npy"
        if not path.exists():
            np.save(path, draw_frames(number, frames, size))
        clips.append(Clip(f"{name}-{number}", number, path, tuple(captions[number::videos]), "train"))
    return TaskData(name, name, tuple(clips))


def draw_frames(seed: int, frames: int, size: int) -> np.ndarray:
    """Draw random frames ``uint8 [frames, size, size, 3]`` in coarse squares that differ between videos."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 256, (frames, 7, 7, 3), dtype=np.uint8)
    rows = np.arange(size) * 7 // size
    return cells[:, rows][:, :, rows]
