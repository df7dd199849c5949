"""State of a release in memory: everything that was learned up to a task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from models.backbones.backbone import Backbone
from models.releases.calibration_captions import CalibrationCaption
from models.releases.release_lineage import ReleaseTask
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import RoutingProfiles


@dataclass(frozen=True)
class ReleaseState:
    """The learned state after a task.

    Attributes:
        method: Name of the method that learned the release.
        kind: Kind of the encoder family that encodes with the release (:mod:`models.encoders.families`).
        backbone: Name of the backbone.
        backbone_fingerprint: Fingerprint of the backbone's weights and preprocessing.
        fingerprint: Fingerprint of the release's video encoder.
        frames: Frames per video.
        tasks: Learned tasks in order; position t−1 is task t.
        config: Settings of the method.
        profiles: Routing profile of each task.
        tensors: Adapters or towers, by name.
        confidence: Calibration of searches; None if the release was not calibrated.
        calibration: Training captions that further releases are calibrated with; query encoders do not read them.
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
    tensors: dict[str, Tensor] = field(default_factory=dict)
    confidence: ConfidenceModel | None = None
    calibration: tuple[CalibrationCaption, ...] = ()


def tensors_with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names start with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def video_fingerprint(backbone: Backbone, frames: int, tensors: Mapping[str, Tensor]) -> str:
    """Fingerprint of a video encoder: backbone, preprocessing, frames per video, and learned weights.

    Encoders with equal fingerprints produce equal vectors; vectors of different fingerprints are never compared.

    Args:
        frames: Frames per video.
    """
    digest = hashlib.sha256(f"{backbone.fingerprint}:{frames}:{backbone.dim}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
