"""Families of backbones without adapters: the frozen backbone, and towers that are fine-tuned as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.packed_text_tower import pack_text_tower
from models.encoders.encoder_family import EncoderFamily, FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState, tensors_with_prefix


class FrozenQueryEncoder(QueryEncoder):
    """Encodes texts with the backbone alone."""

    modes = ("latest", "pinned")

    def is_task_independent(self, mode: str) -> bool:
        return True

    def encoding_identity(self, task: str, mode: str) -> str | None:
        return self._backbone.fingerprint

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._backbone, ids)


class FrozenVideoEncoder(FamilyVideoEncoder):
    """Encodes frames with the backbone alone."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        return self._encode_with_backbone


FROZEN_FAMILY = EncoderFamily(
    kind="frozen",
    query_encoder=FrozenQueryEncoder,
    video_encoder=FrozenVideoEncoder,
    query_prefixes=(),
    video_prefixes=(),
)


_TOWERS, _VISUAL = "clip.", "clip.visual."


class TowerQueryEncoder(QueryEncoder):
    """A fine-tuned text tower: one vector for all tasks. A whole tower per task is too large to be pinned."""

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone, inputs.release
        tower = backbone.clone()
        # A release may hold more than the towers: momentum encoders, queues, importances, a replay buffer.
        tower.load_tensors({n: t for n, t in release.tensors.items() if n.startswith(_TOWERS)})
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
