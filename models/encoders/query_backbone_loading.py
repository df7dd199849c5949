"""Load the text side of a backbone, without torch where possible."""

from __future__ import annotations

from models.backbones import Precision
from models.backbones.backbone_loading import SMALL, load_backbone
from models.backbones.frozen_tower import warn_unavailable
from models.backbones.query_backbone import QueryBackbone
from models.backbones.torch_threads import apply_torch_threads
from models.errors import BackboneUnavailable

_CPU = "cpu"


def check_device(name: str) -> None:
    """Check that a device can be used.

    Raises:
        ModelError: The name is unknown, or it is ``cuda`` and torch finds no usable GPU.
    """
    if name != _CPU:
        from models.backbones.tower_computation import compute_device

        compute_device(name)


def load_query_backbone(
    name: str, frames: int | None = None, *, device: str = _CPU, precision: Precision = "float32"
) -> QueryBackbone:
    """Load the text side of a backbone.

    Args:
        name: Name of the backbone, see :mod:`models.backbones.backbone_loading`.
        frames: Frames per video for its image tower.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU if one is available.
        precision: Precision of the text tower's matrix products.

    Raises:
        BackboneUnavailable: The name is unknown, or the weights cannot be fetched.
        ModelError: See :func:`check_device`.
    """
    if (name, device, precision) == (SMALL, _CPU, "float32"):
        try:
            from models.backbones.small.text_side import SmallTextSide

            return SmallTextSide(frames)
        except BackboneUnavailable:
            raise
        except Exception as error:  # a broken library may raise anything when it is imported or used
            warn_unavailable(error)
    from models.backbones.tower_computation import compute_device
    from models.encoders.tower_query_backbone import TowerQueryBackbone

    apply_torch_threads()
    backbone = load_backbone(name, frames).to(compute_device(device))
    backbone.query_precision = precision
    return TowerQueryBackbone(backbone)
