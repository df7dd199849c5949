"""The family of low-rank updates: every shard keeps a small update to the text tower, and one to the image tower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from models.adapters.low_rank_image_tower import LowRankImageTower
from models.adapters.low_rank_text_update import TextUpdateSet, compact_text_update
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import EncoderFamily
from models.encoders.families.frozen_family import FROZEN_FAMILY
from models.encoders.families.tame_family import FUSION_PREFIX, load_frame_fusion
from models.encoders.family_video_encoder import FamilyVideoEncoder
from models.encoders.query_encoder import QueryEncoderInputs, adapter_identity
from models.encoders.tower_forward import PerTextCondition, encode_frames, encode_texts
from models.encoders.tower_query_backbone import AdaptedQueryEncoder
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix, to_arrays

_TEXT, _IMAGE = "text.", "image."


class LowRankQueryEncoder(AdaptedQueryEncoder):
    """The text tower with the update from each shard's release, or with the newest update for all tasks."""

    modes = ("latest", "pinned")
    _pinned: TextUpdateSet

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone.towers(), inputs.release
        self._newest = _load_text_update(backbone, release)
        reused = inputs.previous if isinstance(inputs.previous, LowRankQueryEncoder) else None
        # The common first tasks are reused in one piece; one by one, their token embeddings would be copied again.
        pairs = zip(self.tasks, reused.tasks if reused else (), strict=False)
        unchanged = inputs.unchanged_tasks
        first = len(list(takewhile(lambda pair: pair[0] == pair[1] and pair[0] in unchanged, pairs)))
        parts = [reused._pinned.part(0, first)] if reused and first else []
        for task in self.tasks[first:]:
            if reused and task in unchanged:
                place = reused._position[task]
                parts.append(reused._pinned.part(place, place + 1))
                continue
            state = inputs.pinned_release(task)
            # A shard that predates the first update is queried with the backbone alone.
            is_frozen = state.kind == FROZEN_FAMILY.kind
            parts.append(self._newest.unchanged() if is_frozen else _load_text_update(backbone, state))
        self._pinned = TextUpdateSet.stack(parts)

    def is_task_independent(self, mode: str) -> bool:
        return mode == "latest"

    def encoding_identity(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        place = self._position[task]
        update = self._pinned.part(place, place + 1)
        if not update.b.any() and not update.words.any():
            return self._backbone.fingerprint
        tensors = {name: getattr(update, name) for name in ("a", "b", "words", "keys")}
        return adapter_identity([self._backbone.fingerprint, update.scale], to_arrays(tensors))

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        if mode == "latest":
            return encode_texts(self._backbone, ids, self._newest)
        chosen = torch.tensor(positions).to(self._backbone.device, non_blocking=True)
        return encode_texts(self._backbone, ids, self._pinned.choose(chosen))

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        if mode == "latest":
            return self.encode_for_tasks(ids, (), mode)[0]
        positions = positions.to(self._backbone.device, non_blocking=True)
        return encode_texts(self._backbone, ids, PerTextCondition(self._pinned.choose(positions)))[0]


class LowRankVideoEncoder(FamilyVideoEncoder):
    """The image tower with low-rank updates and Frame Fusion Adapters."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self._tower: tuple[tuple[Any, ...], LowRankImageTower] | None = None  # with its rank and scale

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        sizes = release.config["image_rank"], release.config["scale"]
        if self._tower is None or self._tower[0] != sizes:
            # Tensors made in inference mode could not be overwritten outside it.
            with torch.inference_mode(False):
                self._tower = sizes, LowRankImageTower(self._backbone, rank=sizes[0], scale=sizes[1])
        tower = self._tower[1]
        tower.load_tensors(tensors_with_prefix(_IMAGE, release.tensors))
        fusion = load_frame_fusion(self._backbone, release)
        return lambda frames: encode_frames(tower.backbone, frames, fusion)[0]


def _load_text_update(backbone: Backbone, release: ReleaseState) -> TextUpdateSet:
    """Load a release's text update, as the only candidate.

    Raises:
        ReleaseError: The release's tensors are not an update to this backbone's text tower.
    """
    try:
        update = compact_text_update(
            tensors_with_prefix(_TEXT, release.tensors), backbone.vocabulary, release.config["scale"]
        ).to(backbone.device)
    except (KeyError, ValueError) as error:
        raise ReleaseError(f"the release's text update is invalid: {error}") from error
    if update.a.shape[1::3] != (len(backbone.text_blocks), backbone.text_width):
        raise ReleaseError(
            f"the release's text update is for {update.a.shape[1]} blocks of width {update.a.shape[-1]}, but the "
            f"text tower of {backbone.name!r} has {len(backbone.text_blocks)} of width {backbone.text_width}"
        )
    return update


LOW_RANK_FAMILY = EncoderFamily(
    kind="low_rank",
    query_encoder=LowRankQueryEncoder,
    video_encoder=LowRankVideoEncoder,
    query_prefixes=(_TEXT,),
    video_prefixes=(_IMAGE, FUSION_PREFIX),
)
