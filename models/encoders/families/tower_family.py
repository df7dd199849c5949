"""The family of towers that are fine-tuned as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.packed_text_tower import pack_text_tower
from models.encoders.encoder_registry import EncoderFamily
from models.encoders.family_video_encoder import FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoderInputs
from models.encoders.tower_forward import encode_frames, encode_texts
from models.encoders.tower_query_backbone import AdaptedQueryEncoder
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix

_TOWERS, _VISUAL = "clip.", "clip.visual."


class TowerQueryEncoder(AdaptedQueryEncoder):
    """A fine-tuned text tower: one vector for all tasks. A whole tower per task is too large to be pinned."""

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        tower = inputs.backbone.towers().clone()
        # A release may hold more than the towers: momentum encoders, queues, importances, a replay buffer.
        weights = tensors_with_prefix(_TOWERS, inputs.release.tensors)
        tower.load_tensors({f"{_TOWERS}{name}": tensor for name, tensor in weights.items()})
        self._tower = pack_text_tower(tower)

    def is_task_independent(self, mode: str) -> bool:
        return mode == "latest"

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._tower, ids)


class TowerVideoEncoder(FamilyVideoEncoder):
    """A fine-tuned image tower."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self._tower: Backbone | None = None  # its image tower takes the weights of each loaded release

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        tower = self._load_tower(release)
        return lambda frames: encode_frames(tower, frames)[0]

    def _load_tower(self, release: ReleaseState) -> Backbone:
        if self._tower is None:
            # Tensors made in inference mode could not be overwritten outside it.
            with torch.inference_mode(False):
                self._tower = self._backbone.clone_image_tower()
        self._tower.load_image_tensors(tensors_with_prefix(_VISUAL, release.tensors))
        return self._tower


TOWER_FAMILY = EncoderFamily(
    kind="tower",
    query_encoder=TowerQueryEncoder,
    video_encoder=TowerVideoEncoder,
    query_prefixes=(_TOWERS,),
    video_prefixes=(_VISUAL,),
)
