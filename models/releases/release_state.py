"""State of a release in memory: everything that was learned up to a task.

Its calibration captions are training captions with the results that they had before they were learned. A release finds
its own training videos by their captions far better than other videos, so these captions cannot show how well it finds
others. A method in closed form can learn a task again without some of its videos; the captions of these videos are
then searched in the task, and the results are kept with the release. Later releases search the same captions in their
other tasks, which have not learned from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from models.errors import ReleaseError
from models.releases.release_lineage import ReleaseTask
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import RoutingProfiles

Array = npt.NDArray[Any]

CALIBRATION_FILE = "calibration.json"


@dataclass(frozen=True)
class CalibrationCaption:
    """A caption of a training video, with its results in the video's task without that video's share in learning.

    Attributes:
        video: Vector ID of the video.
        text: Caption.
        words: Evidence of the words for the task, in nats.
        captions: Evidence in addition to that of the words, in nats.
        coverage: Share of the distinct tokens of the caption that the other captions of the task contain.
        score: Cosine of the video.
        ids: Vector IDs of the nearest videos of the task.
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
    """Return the calibration captions of a release; empty for a release without any.

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


@dataclass(frozen=True)
class ReleaseState:
    """The learned state after a task.

    Attributes:
        kind: Kind of the encoder family that encodes with the release (:mod:`models.encoders.families`).
        backbone_fingerprint: Fingerprint of the backbone's weights and preprocessing.
        fingerprint: Fingerprint of the release's video encoder.
        tasks: Learned tasks in order; position t−1 is task t.
        profiles: Routing profile of each task.
        tensors: Adapters or towers, by name; :mod:`models.releases.release_tensors` converts them for torch.
        confidence: Calibration of searches; None if the release was not calibrated.
        calibration: Training captions that later releases are calibrated with; query encoders do not read them.
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


def arrays_with_prefix(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays whose names start with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def video_fingerprint(backbone_fingerprint: str, dim: int, frames: int, tensors: Mapping[str, Array]) -> str:
    """Return the fingerprint of a video encoder: backbone, preprocessing, frames per video, and learned weights.

    Encoders with equal fingerprints produce equal vectors; vectors of different fingerprints are never compared.

    Args:
        dim: Dimension of the joint space.
        frames: Frames per video.
    """
    digest = hashlib.sha256(f"{backbone_fingerprint}:{frames}:{dim}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.tobytes())
    return digest.hexdigest()
