"""Base of the video side of encoder families, which runs in torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames
from models.releases.release_state import Array, ReleaseState


class FamilyVideoEncoder(ABC):
    """Video side of an encoder family: encodes frames with the weights of one release at a time.

    An instance can reuse a tower from release to release. It is not safe to share between threads.

    Args:
        backbone: Backbone that the releases were learned on. It is not changed.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    @abstractmethod
    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        """Load the video side of a release.

        Returns:
            Function from frames ``uint8 [n, M, H, W, 3]`` to unit video vectors ``[n, dim]``. It is valid until the
            next release is loaded.

        Raises:
            KeyError, RuntimeError: The tensors or settings of the release do not fit the backbone.
        """

    @staticmethod
    def fingerprint_tensors(release: ReleaseState) -> dict[str, Array]:
        """Return the arrays that the fingerprint of the release's video encoder covers; all of its video side by
        default.

        Args:
            release: Release with the tensors of its video side alone.
        """
        return release.tensors

    def _encode_with_backbone(self, frames: Tensor) -> Tensor:
        """Return unit video vectors ``[n, dim]`` of the backbone without learned weights."""
        return encode_frames(self._backbone, frames)[0]
