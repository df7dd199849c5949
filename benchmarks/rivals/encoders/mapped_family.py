"""Encoders of fine-tuned towers with query maps, see :mod:`benchmarks.rivals.shared.query_maps`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from models.encoders.families.tower_family import TOWER_FAMILY, TowerQueryEncoder
from models.encoders.query_encoder import QueryEncoderInputs
from models.errors import ReleaseError

MAPS, SHIFTS = "maps", "shifts"


class MappedQueryEncoder(TowerQueryEncoder):
    """A fine-tuned text tower, and for every task a map x ↦ xM + s into the space of its shard.

    The release has tensors ``maps [T, dim, dim]`` and ``shifts [T, dim]``; M = I and s = 0 for the newest task. Mapped
    vectors are normalized to unit length, so that cosines have the same scale in all shards.
    """

    modes = ("latest", "mapped")

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone.towers(), inputs.release
        tasks, dim = len(self.tasks), backbone.dim
        for name, expected in ((MAPS, (tasks, dim, dim)), (SHIFTS, (tasks, dim))):
            shape = tuple(release.tensors[name].shape) if name in release.tensors else None
            if shape != expected:
                raise ReleaseError(f"the release's {name} have shape {shape}, not {expected}")
        self._maps = torch.from_numpy(release.tensors[MAPS]).to(backbone.device)
        self._shifts = torch.from_numpy(release.tensors[SHIFTS]).to(backbone.device)

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


MAPPED_FAMILY = replace(
    TOWER_FAMILY,
    kind="mapped",
    query_encoder=MappedQueryEncoder,
    query_prefixes=(*TOWER_FAMILY.query_prefixes, MAPS, SHIFTS),
)
