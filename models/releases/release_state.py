"""A release in memory: everything learned up to a task.

Its calibration captions are training captions, with the results that they had before they were learned. A release finds
its own training videos by their captions far better than other videos, so these captions cannot show how well it finds
others. A closed-form method can learn a task again without some of its videos; the captions of these videos are then
searched in the task, and the results are kept with the release. Later releases search the same captions in their other
tasks, which have not learned from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from models.errors import ReleaseError
from models.releases.measured_fold import MeasuredFold
from models.releases.release_lineage import ReleaseTask
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import RoutingProfiles

Array = npt.NDArray[Any]

CALIBRATION_FILE = "calibration.json"
# Prefix of tensors that take the place of others where captions of folds must be unknown.
MEASURED = "measured."


@dataclass(frozen=True)
class CalibrationCaption:
    """A training video's caption, with its results in the video's task as if the video had not been learned.

    Attributes:
        video: Vector ID of the video.
        words: Evidence of the words for the task, in nats.
        captions: Evidence of the captions for the task, in nats.
        coverage: Share of the caption's distinct tokens that the task's other captions contain.
        score: Cosine of the video.
        ids: Vector IDs of the nearest videos in the task.
        cosines: Cosines of these videos, best first.
        others: Cosines of other videos that were not learned.
        retyped: Cosine and evidence of words for the caption as people retype it: of the video, then of its rivals.
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
    others: tuple[float, ...] = ()
    retyped: tuple[tuple[float, float], ...] = ()


def write_calibration(folder: Path, captions: Sequence[CalibrationCaption]) -> None:
    """Write a release's calibration captions into its folder."""
    (folder / CALIBRATION_FILE).write_text(json.dumps([asdict(c) for c in captions]) + "\n", encoding="utf-8")


def read_calibration(folder: Path) -> tuple[CalibrationCaption, ...]:
    """Read a release's calibration captions; empty if it has none.

    Raises:
        ReleaseError: The file has an unknown format.
    """
    file = folder / CALIBRATION_FILE
    try:
        stored: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        return tuple(
            CalibrationCaption(
                **{**c, **{name: tuple(c.get(name, ())) for name in ("ids", "cosines", "others")}}
                | {"retyped": tuple((float(cosine), float(words)) for cosine, words in c.get("retyped", ()))}
            )
            for c in stored
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name}: {CALIBRATION_FILE} cannot be read ({error})") from error


@dataclass(frozen=True)
class ReleaseState:
    """The learned state after a task.

    Attributes:
        kind: Kind of the encoder family for the release (:mod:`models.encoders.encoder_registry`).
        backbone_fingerprint: Fingerprint of the backbone's weights and preprocessing.
        fingerprint: Fingerprint of the release's video encoder.
        tasks: Learned tasks in order; position t−1 is task t.
        tensors: Adapters or towers, by name; :mod:`models.releases.release_tensors` converts them for torch.
        confidence: Calibration of searches; None if the release was not calibrated.
        calibration: Training captions for calibrating later releases; query encoders do not read them.
        fold: Measured fold of the newest task; None without one, and for query encoders.
    """

    method: str
    kind: str
    backbone: str
    backbone_fingerprint: str
    fingerprint: str
    frames: int
    tasks: list[ReleaseTask]
    config: dict[str, Any]
    profiles: RoutingProfiles
    tensors: dict[str, Array] = field(default_factory=dict)
    confidence: ConfidenceModel | None = None
    calibration: tuple[CalibrationCaption, ...] = ()
    fold: MeasuredFold | None = None

    def as_measured(self) -> ReleaseState:
        """Use the tensors that have not learned the captions of folds."""
        return replace(self, tensors={**self.tensors, **arrays_with_prefix(MEASURED, self.tensors)})


def arrays_with_prefix(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Select the arrays whose names start with a prefix, and strip it."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def video_fingerprint(backbone_fingerprint: str, dim: int, frames: int, tensors: Mapping[str, Array]) -> str:
    """Compute a video encoder's fingerprint from backbone, preprocessing, frames per video, and learned weights.

    Encoders with equal fingerprints produce equal vectors, up to rounding; vectors of different fingerprints are never
    compared.
    """
    digest = hashlib.sha256(f"{backbone_fingerprint}:{frames}:{dim}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.tobytes())
    return digest.hexdigest()
