"""Base class of video encoders, which run in torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames
from models.releases.release_state import Array, ReleaseState


class FamilyVideoEncoder(ABC):
    """Encodes frames with the weights of one release at a time.

    An instance may reuse a tower from release to release, and must not be shared between threads.

    Args:
        backbone: Backbone that the releases were learned on. It is not modified.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone

    @abstractmethod
    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        """Load a release's video side.

        Returns:
            Function from frames ``uint8 [n, M, H, W, 3]`` to unit video vectors ``[n, dim]``, valid until the next
            release is loaded.

        Raises:
            KeyError, RuntimeError: The release's tensors or settings do not fit the backbone.
        """

    @staticmethod
    def fingerprint_tensors(release: ReleaseState) -> dict[str, Array]:
        """Select the arrays that fingerprint the release's video encoder; by default all that it needs.

        Args:
            release: Release with only the tensors that its video encoder needs.
        """
        return release.tensors

    def _encode_with_backbone(self, frames: Tensor) -> Tensor:
        """Encode frames to unit video vectors ``[n, dim]`` with the backbone, without learned weights."""
        return encode_frames(self._backbone, frames)[0]
