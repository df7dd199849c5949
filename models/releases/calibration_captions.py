"""Calibration captions of a release: training captions with the results that they had before they were learned.

A release finds its own training videos by their captions far better than other videos, so these captions cannot show
how well it finds others. A method in closed form can learn a task again without some of its videos; the captions of
these videos are then searched in the task, and the results are kept with the release. Later releases search the same
captions in their other tasks, which have not learned from them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from models.errors import ReleaseError

CALIBRATION_FILE = "calibration.json"


@dataclass(frozen=True)
class CalibrationCaption:
    """A caption of a training video, with its results in the video's task without that video's share in learning.

    Attributes:
        task: Identifier of the task.
        video: Vector id of the video.
        text: Caption.
        words: Evidence of the words for the task, in nats.
        captions: Evidence in addition to that of the words, in nats.
        coverage: Share of the distinct tokens of the caption that the other captions of the task contain.
        score: Cosine of the video.
        ids: Vector ids of the nearest videos of the task.
        cosines: Cosines of these videos, descending.
    """

    task: str
    video: int
    text: str
    words: float
    captions: float
    coverage: float
    score: float
    ids: tuple[int, ...]
    cosines: tuple[float, ...]


def write_calibration(folder: Path, captions: Sequence[CalibrationCaption]) -> None:
    """Write the calibration captions of a release into its folder."""
    (folder / CALIBRATION_FILE).write_text(json.dumps([asdict(c) for c in captions]) + "\n", encoding="utf-8")


def read_calibration(folder: Path) -> tuple[CalibrationCaption, ...]:
    """Calibration captions of a release; empty for a release without any.

    Raises:
        ReleaseError: The file has an unknown format.
    """
    file = folder / CALIBRATION_FILE
    try:
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        return tuple(
            CalibrationCaption(**{**c, "ids": tuple(c["ids"]), "cosines": tuple(c["cosines"])})
            for c in stored
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name}: {CALIBRATION_FILE} cannot be read ({error})") from error
