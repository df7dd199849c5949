"""Families of fine-tuned towers: the text tower of the release encodes for all tasks, with or without learned maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.video_proxy import VideoProxies, encode_with_proxies
from models.backbones.backbone import Backbone
from models.backbones.packed_text_tower import pack_text_tower
from models.encoders.encoder_family import EncoderFamily, FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState, tensors_with_prefix

__all__ = [
    "FAMILIES",
    "MAPPED_FAMILY",
    "TOWER_FAMILY",
    "MappedQueryEncoder",
    "TowerQueryEncoder",
    "TowerVideoEncoder",
]

_TOWERS, _VISUAL, _PROXIES = "clip.", "clip.visual.", "proxies."
_MAPS, _SHIFTS = "maps", "shifts"


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


class MappedQueryEncoder(TowerQueryEncoder):
    """A fine-tuned text tower, and for every task a map x ↦ xM + s into the space of its shard.

    The release has tensors ``maps [T, dim, dim]`` and ``shifts [T, dim]``; M = I and s = 0 for the newest task. Mapped
    vectors are normalized to unit length, so that the cosines of all shards have one scale.
    """

    modes = ("latest", "mapped")

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone, inputs.release
        tasks, dim = len(self.tasks), backbone.dim
        for name, expected in ((_MAPS, (tasks, dim, dim)), (_SHIFTS, (tasks, dim))):
            shape = tuple(release.tensors[name].shape) if name in release.tensors else None
            if shape != expected:
                raise ReleaseError(f"the release's {name} have shape {shape}, not {expected}")
        self._maps = release.tensors[_MAPS].to(backbone.device)
        self._shifts = release.tensors[_SHIFTS].to(backbone.device)

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        newest = super().encode_for_tasks(ids, positions, mode)  # [1, n, dim]
        if mode == "latest":
            return newest
        chosen = list(positions)
        return F.normalize(newest @ self._maps[chosen] + self._shifts[chosen].unsqueeze(1), dim=-1)

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        # A text passes the tower once for all its tasks.
        distinct, place = np.unique(ids.cpu().numpy(), axis=0, return_inverse=True)
        vectors = super().encode_for_tasks(torch.from_numpy(distinct), (), "latest")
        newest = vectors[0, torch.from_numpy(place)]
        if mode == "latest":
            return newest
        mapped = (newest.unsqueeze(1) @ self._maps[positions]).squeeze(1) + self._shifts[positions]
        return F.normalize(mapped, dim=-1)


class TowerVideoEncoder(FamilyVideoEncoder):
    """A fine-tuned image tower, with video proxies if the release has them."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self._tower: Backbone | None = None  # its image tower takes the weights of each loaded release

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        if self._tower is None:
            # Tensors made in inference mode could not be overwritten outside it.
            with torch.inference_mode(False):
                self._tower = self._backbone.clone_image_tower()
        tower = self._tower
        tower.clip.visual.load_state_dict(tensors_with_prefix(_VISUAL, release.tensors))
        proxy_tensors = tensors_with_prefix(_PROXIES, release.tensors)
        if not proxy_tensors:
            return lambda frames: encode_frames(tower, frames)[0]
        proxies = VideoProxies(self._backbone, len(proxy_tensors["added"]) + 1)
        proxies.load_state_dict(proxy_tensors)
        proxies.to(self._backbone.device)
        return lambda frames: encode_with_proxies(tower, frames, proxies)


TOWER_FAMILY = EncoderFamily(
    kind="tower",
    query_encoder=TowerQueryEncoder,
    video_encoder=TowerVideoEncoder,
    query_prefixes=(_TOWERS,),
    video_prefixes=(_VISUAL, _PROXIES),
)
MAPPED_FAMILY = EncoderFamily(
    kind="mapped",
    query_encoder=MappedQueryEncoder,
    video_encoder=TowerVideoEncoder,
    query_prefixes=(_TOWERS, _MAPS, _SHIFTS),
    video_prefixes=(_VISUAL, _PROXIES),
)
FAMILIES = (TOWER_FAMILY, MAPPED_FAMILY)
