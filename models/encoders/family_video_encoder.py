"""Video encoders, which run in torch: their base class, and those of families that encode queries as arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from models.adapters.analytic_maps import AnalyticVideoMap, VectorLayout
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames
from models.releases.release_state import Array, ReleaseState, arrays_with_prefix


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
        """Select the arrays that fingerprint the release's video encoder; by default all that it needs."""
        return release.tensors

    def _encode_with_backbone(self, frames: Tensor) -> Tensor:
        """Encode frames to unit video vectors ``[n, dim]`` with the backbone, without learned weights."""
        return encode_frames(self._backbone, frames)[0]


class FrozenVideoEncoder(FamilyVideoEncoder):
    """Encodes frames with the backbone alone."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        return self._encode_with_backbone


class AnalyticVideoEncoder(FamilyVideoEncoder):
    """The frozen image tower and an affine map on its features."""

    def __init__(self, backbone: Backbone, prefix: str) -> None:
        super().__init__(backbone)
        self._prefix = prefix

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        backbone = self._backbone
        video_map = AnalyticVideoMap.from_tensors(arrays_with_prefix(self._prefix, release.tensors))
        layout = VectorLayout.for_backbone(backbone, release.config["semantic_weight"])
        if video_map.weight.shape != (backbone.feature_dim, layout.semantic + layout.lexical):
            raise RuntimeError(
                f"the video map has shape {video_map.weight.shape}, not "
                f"{(backbone.feature_dim, layout.semantic + layout.lexical)}"
            )
        return lambda frames: apply_video_map(video_map, backbone, backbone.video_features(frames), layout)


def apply_video_map(
    video_map: AnalyticVideoMap, backbone: Backbone, features: Tensor, layout: VectorLayout
) -> Tensor:
    """Map video features ``[n, F]`` to unit vectors ``[n, dim]``."""
    projected = backbone.project_features(features)
    vectors = video_map(features.cpu().numpy(), projected.detach().cpu().numpy(), layout)
    return torch.from_numpy(vectors).to(features.device)
