"""Video encoders for families that encode queries as arrays: the frozen image tower, and an affine map on top."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from models.adapters.analytic_maps import AnalyticVideoMap, VectorLayout
from models.backbones.backbone import Backbone
from models.encoders.family_video_encoder import FamilyVideoEncoder
from models.releases.release_state import ReleaseState, arrays_with_prefix


class FrozenVideoEncoder(FamilyVideoEncoder):
    """Encodes frames with the backbone alone."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        return self._encode_with_backbone


class AnalyticVideoEncoder(FamilyVideoEncoder):
    """The frozen image tower and an affine map on its features.

    Args:
        backbone: Backbone that the releases were learned on.
        prefix: Name prefix of the map's tensors.
    """

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
