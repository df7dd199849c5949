"""Families that adapt the text tower: TAME, low-rank updates, and towers that are fine-tuned as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock

import torch
from cachetools import LRUCache
from torch import Tensor

from models.adapters.image_adapters import FrameFusion, LowRankImageTower
from models.adapters.low_rank_text_update import TextUpdateSet, compact_text_update
from models.adapters.tame import NO_EXPERT, Tame, TameCondition, TameWeights
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import EncoderFamily, VideoLoader
from models.encoders.frozen_families import FROZEN_FAMILY
from models.encoders.query_encoder import QueryEncoderInputs, adapter_identity
from models.encoders.tower_forward import (
    PerTextCondition,
    TextCondition,
    WordCondition,
    encode_frames,
    encode_texts,
)
from models.encoders.tower_query_backbone import AdaptedQueryEncoder, pack_text_tower
from models.errors import ReleaseError
from models.releases.release_state import Array, ReleaseState, arrays_with_prefix
from models.releases.release_tensors import tensors_with_prefix, to_arrays

_TAME = "tame."
_FUSION = "ffa."  # Frame Fusion Adapters
WORD_PREFIX = "words."  # changed token embeddings


class TameQueryEncoder(AdaptedQueryEncoder):
    """TAME under every task's prototype, with the newest weights or those of each shard's release."""

    _pinned: TameCondition
    _pinned_words: TextUpdateSet | None

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release, previous = inputs.backbone.towers(), inputs.release, inputs.previous
        self._tame = _load_tame(backbone, release)
        self._pinned_releases = inputs.pinned
        adapters = [self._tame.weights()]
        self._words = _load_words(backbone, release)
        prototypes, experts, sets, words = [], [], [], []
        for position, task in enumerate(self.tasks):
            # A frozen shard predates the first adapters; its queries use the backbone alone.
            prototype, expert, weights = self._tame.prototypes[position], NO_EXPERT, None
            changed: TextUpdateSet | None = None
            if isinstance(previous, TameQueryEncoder) and task in inputs.unchanged_tasks:
                reused, index = previous._pinned, previous._position[task]
                prototype, expert = reused.prototypes[index], int(reused.experts[index])
                weights = reused.weights.select_set(previous._sets[index]) if expert != NO_EXPERT else None
                if previous._pinned_words is not None:
                    changed = previous._pinned_words.part(index, index + 1)
            elif (state := inputs.pinned_release(task)).kind != FROZEN_FAMILY.kind:
                is_newest = state is release
                tame = self._tame if is_newest else _load_tame(backbone, state)
                prototype, expert = tame.prototypes[position], tame.task_experts[position]
                weights = None if is_newest else tame.weights()
                changed = self._words if is_newest else _load_words(backbone, state)
            prototypes.append(prototype)
            experts.append(expert)
            sets.append(len(adapters) if weights else 0)
            adapters += [weights] if weights else []
            if self._words is not None:
                words.append(changed or self._words.unchanged())
        self._sets: list[int] = sets  # index of each task's adapters in the pinned weights
        self._pinned_words = TextUpdateSet.stack(words) if words else None
        # Queries for frozen shards use the backbone alone: the second candidate changes no word.
        self._latest_words = self._words and TextUpdateSet.stack([self._words, self._words.unchanged()])
        device = backbone.device
        self._pinned = TameCondition(
            weights=TameWeights.stack(adapters),
            prototypes=torch.stack(prototypes),
            experts=torch.tensor(experts).to(device),
            top_k=self._tame.top_k,
            scale=self._tame.scale,
            sets=torch.tensor(sets).to(device),
        )

    def encoding_identity(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        release = self._pinned_releases[task]
        if release.kind == FROZEN_FAMILY.kind:
            return self._backbone.fingerprint
        settings = [release.backbone_fingerprint, release.config.get("top_k", 1), release.config["scale"]]
        words = {n: t for n, t in release.tensors.items() if n.startswith(WORD_PREFIX)}
        digest = adapter_identity(settings, arrays_with_prefix(_TAME, release.tensors) | words)
        return f"{self._position[task]} of {digest}"

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        return encode_texts(self._backbone, ids, self._condition(positions, mode))

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        condition = PerTextCondition(self._condition(positions.tolist(), mode))
        return encode_texts(self._backbone, ids, condition)[0]

    def _condition(self, positions: Sequence[int], mode: str) -> TextCondition:
        device = self._backbone.device
        if mode != "latest":
            chosen = torch.tensor(positions, dtype=torch.int64).to(device, non_blocking=True)
            pinned, words = self._pinned.choose(chosen), self._pinned_words
            return pinned if words is None else WordCondition(pinned, words.choose(chosen))
        newest = self._tame.condition(positions)
        if self._latest_words is None:
            return newest
        frozen = [int(self._tame.task_experts[position] == NO_EXPERT) for position in positions]
        return WordCondition(
            newest, self._latest_words.choose(torch.tensor(frozen).to(device, non_blocking=True))
        )


def _open_tame_videos(backbone: Backbone) -> VideoLoader:
    """Encode with the frozen image tower and Frame Fusion Adapters."""

    def load(release: ReleaseState) -> Callable[[Tensor], Tensor]:
        fusion = _load_fusion(backbone, release)
        return lambda frames: encode_frames(backbone, frames, fusion)[0]

    return load


def _load_fusion(backbone: Backbone, release: ReleaseState) -> FrameFusion:
    """Load a release's Frame Fusion Adapters; raise KeyError or RuntimeError if they do not fit the backbone."""
    fusion = FrameFusion.for_backbone(
        backbone,
        layers=release.config["ffa_layers"],
        neighbor=release.config["ffa_neighbor"],
        mix=release.config["ffa_mix"],
    )
    fusion.load_state_dict(tensors_with_prefix(_FUSION, release.tensors))
    return fusion.to(backbone.device)


def _load_words(backbone: Backbone, release: ReleaseState) -> TextUpdateSet | None:
    """Load a release's changed token embeddings, as one candidate or None; raise ReleaseError if they do not fit."""
    tensors = tensors_with_prefix(WORD_PREFIX, release.tensors)
    if not tensors:
        return None
    try:
        return compact_text_update(tensors, backbone.vocabulary, 1.0).to(backbone.device)
    except (KeyError, ValueError) as error:
        raise ReleaseError(f"the release's token embeddings do not fit the backbone: {error}") from error


def _load_tame(backbone: Backbone, release: ReleaseState) -> Tame:
    """Load a release's text adapters, in evaluation mode; raise ReleaseError if they do not fit its configuration."""
    tensors = tensors_with_prefix(_TAME, release.tensors)
    try:
        _, _, experts, _, rank = tensors["b"].shape
        tame = Tame(
            backbone.text_width,
            len(backbone.text_blocks),
            experts=experts,
            rank=rank,
            top_k=release.config.get("top_k", 1),
            scale=release.config["scale"],
        )
        tame.load_tensors(tensors)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ReleaseError(f"the release's adapters do not fit its configuration: {error}") from error
    return tame.to(backbone.device).eval()


TAME_FAMILY = EncoderFamily(
    kind="tame",
    query_encoder=TameQueryEncoder,
    video_loader=_open_tame_videos,
    query_prefixes=(_TAME, WORD_PREFIX),
    video_prefixes=(_FUSION,),
)

_TEXT, _IMAGE = "text.", "image."


class LowRankQueryEncoder(AdaptedQueryEncoder):
    """The text tower with the update from each shard's release, or with the newest update for all tasks."""

    shared_modes = ("latest",)
    _pinned: TextUpdateSet

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone.towers(), inputs.release
        self._newest = _load_text_update(backbone, release)
        reused = inputs.previous if isinstance(inputs.previous, LowRankQueryEncoder) else None
        # The common first tasks are reused in one piece; one by one, their token embeddings would be copied again.
        first = self._count_shared(inputs) if reused else 0
        parts = [reused._pinned.part(0, first)] if reused and first else []
        for task in self.tasks[first:]:
            if reused and task in inputs.unchanged_tasks:
                index = reused._position[task]
                parts.append(reused._pinned.part(index, index + 1))
                continue
            state = inputs.pinned_release(task)
            # A shard that predates the first update is queried with the backbone alone.
            is_frozen = state.kind == FROZEN_FAMILY.kind
            parts.append(self._newest.unchanged() if is_frozen else _load_text_update(backbone, state))
        self._pinned = TextUpdateSet.stack(parts)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        index = self._position[task]
        update = self._pinned.part(index, index + 1)
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


def _open_low_rank_videos(backbone: Backbone) -> VideoLoader:
    """Encode with low-rank updates to the image tower and Frame Fusion Adapters."""

    @lru_cache(maxsize=1)
    def open_tower(rank: int, scale: float) -> LowRankImageTower:
        # Tensors made in inference mode could not be overwritten outside it.
        with torch.inference_mode(False):
            return LowRankImageTower(backbone, rank=rank, scale=scale)

    def load(release: ReleaseState) -> Callable[[Tensor], Tensor]:
        tower = open_tower(release.config["image_rank"], release.config["scale"])
        tower.load_tensors(tensors_with_prefix(_IMAGE, release.tensors))
        fusion = _load_fusion(backbone, release)
        return lambda frames: encode_frames(tower.backbone, frames, fusion)[0]

    return load


def _load_text_update(backbone: Backbone, release: ReleaseState) -> TextUpdateSet:
    """Load a release's text update, as the only candidate; raise ReleaseError if it does not fit the backbone."""
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
    video_loader=_open_low_rank_videos,
    query_prefixes=(_TEXT,),
    video_prefixes=(_IMAGE, _FUSION),
)

_VISUAL = "clip.visual."
# Everything but the image tower, as CLIP and BERT name it; a release may also hold momentum encoders, queues and more.
_TEXT_TOWER = (
    "clip.text",
    "clip.token_embedding",
    "clip.positional_embedding",
    "clip.transformer.",
    "clip.ln_final.",
    "clip.logit_scale",
)
# Of pinned text towers in memory; others are read again when they are searched.
_MAX_TOWER_BYTES = 2 * 1024**3


class TowerQueryEncoder(AdaptedQueryEncoder):
    """The fine-tuned text tower from each shard's release, or the newest one for all tasks.

    A text passes the tower of every searched task. The least recently used towers are evicted.
    """

    shared_modes = ("latest",)

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        self._frozen, self._releases = inputs.backbone.towers(), inputs.pinned
        self._newest_release, self._newest = inputs.release, self._load(inputs.release)
        self._towers: LRUCache[str, Backbone] = LRUCache(_MAX_TOWER_BYTES, getsizeof=_text_tower_bytes)
        self._lock = Lock()
        previous = inputs.previous if isinstance(inputs.previous, TowerQueryEncoder) else None
        reused = previous.towers() if previous else {}
        for task in self.tasks:
            if previous is None or task not in inputs.unchanged_tasks:
                self._towers[task] = self._tower_of(inputs.pinned_release(task))
            elif task in reused:
                self._towers[task] = reused[task]

    def towers(self) -> dict[str, Backbone]:
        """List the pinned text towers in memory by task."""
        with self._lock:
            return dict(self._towers)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        release = self._releases[task]
        if release.kind == FROZEN_FAMILY.kind:
            return self._backbone.fingerprint
        return adapter_identity([release.backbone_fingerprint], _text_weights(release))

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        if mode == "latest":
            return encode_texts(self._newest, ids)
        return torch.cat([encode_texts(self._tower(self.tasks[position]), ids) for position in positions])

    def encode_each(self, ids: Tensor, positions: Tensor, mode: str) -> Tensor:
        if mode == "latest":
            return self.encode_for_tasks(ids, (), mode)[0]
        vectors = torch.empty(len(ids), self._texts.dim, device=ids.device)
        for position in set(positions.tolist()):
            rows = (positions == position).nonzero()[:, 0].to(ids.device)
            vectors[rows] = self.encode_for_tasks(ids[rows], [position], mode)[0].float()
        return vectors

    def _tower(self, task: str) -> Backbone:
        """Get the text tower of the release that made a task's shard."""
        with self._lock:
            tower = self._towers.get(task)
            if tower is None:
                tower = self._towers[task] = self._tower_of(self._releases[task])
            return tower

    def _tower_of(self, release: ReleaseState) -> Backbone:
        return self._newest if release is self._newest_release else self._load(release)

    def _load(self, release: ReleaseState) -> Backbone:
        """Load a release's text tower; a shard that predates the first one is queried with the backbone alone."""
        if release.kind == FROZEN_FAMILY.kind:
            return self._backbone
        with torch.inference_mode(False):
            tower = self._frozen.clone_text_tower()
        tower.load_text_tensors(tensors_with_prefix("clip.", _text_weights(release)))
        return pack_text_tower(tower)


def _text_weights(release: ReleaseState) -> dict[str, Array]:
    return {name: weight for name, weight in release.tensors.items() if name.startswith(_TEXT_TOWER)}


def _text_tower_bytes(tower: Backbone) -> int:
    """Count the bytes of a text tower and of its packed copy."""
    weights: dict[str, Tensor] = tower.clip.state_dict()
    size = 2 * sum(tensor.nbytes for name, tensor in weights.items() if not name.startswith("visual."))
    return min(size, _MAX_TOWER_BYTES)


def _open_tower_videos(backbone: Backbone) -> VideoLoader:
    """Encode with a fine-tuned image tower."""
    with torch.inference_mode(False):  # see _open_low_rank_videos
        tower = backbone.clone_image_tower()

    def load(release: ReleaseState) -> Callable[[Tensor], Tensor]:
        tower.load_image_tensors(tensors_with_prefix(_VISUAL, release.tensors))
        return lambda frames: encode_frames(tower, frames)[0]

    return load


TOWER_FAMILY = EncoderFamily(
    kind="tower",
    query_encoder=TowerQueryEncoder,
    video_loader=_open_tower_videos,
    query_prefixes=_TEXT_TOWER,
    video_prefixes=(_VISUAL,),
)
