"""Sizes of ``small``, and the constants computed from the weights of both towers. This module imports no torch."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from models.backbones.backbone_description import FrameSpec
from models.errors import BackboneUnavailable

NAME = "small"
RESERVED = 128  # coordinates for closed-form maps: the joint space has 384 + 128 = 512
_DEFAULT_FRAMES = 8
_SIZE = 224  # pixels


class DerivedConstants(NamedTuple):
    """Derived constants, in float32."""

    projection: npt.NDArray[np.float32]  # [1280, dim], from image features to the text space
    text_center: npt.NDArray[np.float32]  # mean of the uncentered unit vectors of generic texts, [dim]
    background_mean: npt.NDArray[np.float32]  # [dim]
    background_precision: npt.NDArray[np.float32]  # [dim, dim]


def small_frame_spec(frames: int | None = None) -> FrameSpec:
    """Describe the frames that ``small`` reads."""
    return FrameSpec(frames or _DEFAULT_FRAMES, _SIZE)


def constants_path() -> Path:
    """Locate the file of derived constants in this package."""
    return Path(str(resources.files("models.backbones.small") / "derived.safetensors"))


def load_constants() -> DerivedConstants:
    """Load this package's derived constants.

    Raises:
        BackboneUnavailable: The file is missing.
    """
    path = constants_path()
    if not path.exists():
        raise BackboneUnavailable(
            f"backbone 'small': models/backbones/small/{path.name} is missing; restore it from the repository, or "
            "compute it again with `python -m models.backbones.small.constant_derivation`"
        )
    return DerivedConstants(**{name: a.astype(np.float32) for name, a in load_file(path).items()})
