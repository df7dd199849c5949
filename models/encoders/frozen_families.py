"""Families of frozen towers: the backbone alone, and closed-form maps that every shard keeps from its own release.

A text passes the text tower once for all tasks. With maps, each task then adds a few vector operations, so the cost of
a search hardly depends on the number of tasks. Queries are encoded as arrays: only videos need torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from models.adapters.analytic_maps import AnalyticMapSet, AnalyticQueryMap, AnalyticVideoMap, VectorLayout
from models.backbones.backbone_description import TextBackground
from models.backbones.query_backbone import Vectors
from models.encoders.encoder_registry import EncoderFamily, VideoLoader
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs, TokenizedText, adapter_identity
from models.errors import ReleaseError
from models.releases.release_state import Array, ReleaseState, arrays_with_prefix
from models.routing.router import CaptionEvidence, CaptionScatter, Indices, as_slice
from models.routing.routing_profiles import distinct_pieces

if TYPE_CHECKING:
    from torch import Tensor

    from models.backbones.backbone import Backbone


class FrozenQueryEncoder(QueryEncoder):
    """Encodes texts with the backbone alone."""

    shared_modes = ("latest", "pinned")
    shares_text_encoding = True

    def encoding_identity(self, task: str, mode: str) -> str | None:
        return self._texts.fingerprint

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        self._positions(tasks, mode)
        vectors = self.encode_with_backbone(texts)
        return np.repeat(vectors[:, None], len(tasks), axis=1)

    def encode_pairs(self, texts: Sequence[TokenizedText], tasks: Sequence[str], mode: str) -> Vectors:
        self._positions(tasks, mode)
        return self._texts.encode([text.tokens for text in texts], alone=True)


def _open_frozen_videos(backbone: Backbone) -> VideoLoader:
    from models.encoders.tower_forward import encode_frames

    return lambda release: lambda frames: encode_frames(backbone, frames)[0]


FROZEN_FAMILY = EncoderFamily(
    kind="frozen",
    query_encoder=FrozenQueryEncoder,
    video_loader=_open_frozen_videos,
    query_prefixes=(),
    video_prefixes=(),
)

_QUERY, _VIDEO, _ROUTING, _BACKGROUND = "query.", "video.", "evidence.", "background."


class AnalyticQueryEncoder(QueryEncoder):
    """The frozen text tower, with the query map of each shard's release, or with the newest map for all tasks."""

    shared_modes = ("latest",)
    shares_text_encoding = True
    _pinned: AnalyticMapSet

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        release = inputs.release
        newest = _read_query_map(release)
        self._layout = VectorLayout(
            len(newest.center), release.config["semantic_weight"], newest.lexicon.shape[-1]
        )
        self.profile_factor = release.config["word_evidence"]
        reused = inputs.previous if isinstance(inputs.previous, AnalyticQueryEncoder) else None
        self._newest = AnalyticMapSet(self._layout, [self._load(release)])
        # The maps of the first tasks that both have in common are shared with the previous encoder, not copied.
        first = self._count_shared(inputs) if reused else 0
        maps = reused._pinned if reused else AnalyticMapSet(self._layout)
        self._pinned = maps.part(0, first).extended(
            [
                maps.map(reused._position[task])
                if reused and task in inputs.unchanged_tasks
                else self._load(inputs.pinned_release(task))
                for task in self.tasks[first:]
            ]
        )
        self._caption_evidence: CaptionEvidence | None = None
        self._last_tasks: tuple[Sequence[str], Indices] = (), slice(0)
        stored = arrays_with_prefix(_BACKGROUND, release.tensors)
        background = TextBackground(**stored) if stored else self._texts.text_background
        if background is not None and self.tasks:
            scatter = CaptionScatter.from_tensors(arrays_with_prefix(_ROUTING, release.tensors))
            means, factor = self._pinned.caption_means, release.config["caption_evidence"]
            self._caption_evidence = CaptionEvidence(scatter, background, *means, factor)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        tensors = self._pinned.tensors(self._position[task])
        if tensors is None:
            return self._texts.fingerprint
        return adapter_identity([self._texts.fingerprint, self._layout.semantic_weight], tensors)

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        positions = np.array(self._positions(tasks, mode), np.int64)
        if mode == "latest":
            positions = positions[:1] * 0
        frozen, rows = self.encode_with_backbone(texts), np.arange(len(texts)).repeat(len(positions))
        chosen = np.tile(positions, len(texts))
        vectors = self._maps(mode)(frozen, distinct_pieces(texts), rows, chosen)
        return np.broadcast_to(
            vectors.reshape(len(texts), len(positions), self._layout.dim),
            (len(texts), len(tasks), self._layout.dim),
        )

    def encode_pairs(self, texts: Sequence[TokenizedText], tasks: Sequence[str], mode: str) -> Vectors:
        # A text passes the tower once for all its tasks, and alone: its vector must not depend on other requests.
        positions = np.array(self._positions(tasks, mode), np.int64)
        keys = [(text.tokens.tobytes(), text.pieces.tobytes()) for text in texts]
        distinct = dict(zip(keys, texts, strict=True))
        indices = {key: index for index, key in enumerate(distinct)}
        return self._maps(mode)(
            self._texts.encode([text.tokens for text in distinct.values()], alone=True),
            [text.pieces for text in distinct.values()],
            np.array([indices[key] for key in keys], np.int64),
            positions * 0 if mode == "latest" else positions,
        )

    def cosines(
        self, texts: Sequence[str], tasks: Sequence[str], shards: Iterable[Vectors], needed: Array
    ) -> Iterator[Vectors]:
        positions, frozen = self._positions(tasks, self.modes[-1]), self.encode_with_backbone(texts)
        return self._pinned.cosines(frozen, distinct_pieces(texts), positions, shards)

    def prepare_texts(self, texts: Sequence[TokenizedText]) -> None:
        self._texts.encode([text.tokens for text in texts], alone=True)

    def routing_evidence(self, texts: Sequence[TokenizedText], tasks: Sequence[str]) -> Vectors | None:
        if self._caption_evidence is None or not texts:
            return None
        last, positions = self._last_tasks
        if tasks is not last:  # nearly all searches pass the same thousands of tasks
            positions = as_slice(np.array([self._position[task] for task in tasks], np.int64))
            self._last_tasks = tasks, positions
        vectors = self._texts.encode([text.tokens for text in texts], alone=True)
        return np.asarray(self._caption_evidence(vectors, positions), np.float32)

    def _maps(self, mode: str) -> AnalyticMapSet:
        """Select all tasks' maps, or in mode ``latest`` the newest map as the only one."""
        return self._newest if mode == "latest" else self._pinned

    def _load(self, release: ReleaseState) -> AnalyticQueryMap | None:
        """Load a release's query map, None for a frozen one, which uses the backbone alone; raise ReleaseError if it
        does not fit the backbone.
        """
        if release.kind == FROZEN_FAMILY.kind:
            return None
        query_map = _read_query_map(release)
        sizes, layout = (len(query_map.center), query_map.lexicon.shape[-1]), self._layout
        if sizes != (layout.semantic, layout.lexical) or layout.semantic > self._texts.dim:
            raise ReleaseError(
                f"the release's query map is for {sizes[0]} semantic and {sizes[1]} lexical coordinates, but "
                f"the newest one has {layout.semantic} and {layout.lexical}, and {self._texts.name!r} has "
                f"{self._texts.dim} coordinates"
            )
        return query_map


def _read_query_map(release: ReleaseState) -> AnalyticQueryMap:
    """Read a release's query map; raise ReleaseError."""
    try:
        query_map = AnalyticQueryMap.from_tensors(arrays_with_prefix(_QUERY, release.tensors))
    except KeyError as error:
        raise ReleaseError(f"the release's query map lacks tensor {error}") from error
    if query_map.lexicon.shape[-1]:
        return query_map
    # Maps of version 1.0.0 without a lexical part have tokens of the text tower, not word pieces.
    words = {name: getattr(query_map, name)[:0] for name in ("tokens", "token_weights", "lexicon")}
    return replace(query_map, **words)


def _open_analytic_videos(backbone: Backbone) -> VideoLoader:
    """Encode with the frozen image tower and an affine map on its features."""
    from models.encoders.video_encoder import apply_video_map

    def load(release: ReleaseState) -> Callable[[Tensor], Tensor]:
        video_map = AnalyticVideoMap.from_tensors(arrays_with_prefix(_VIDEO, release.tensors))
        (features, width), semantic = video_map.weight.shape, backbone.semantic_dim
        if features != backbone.feature_dim or width < semantic:
            shape = backbone.feature_dim, f"≥ {semantic}"
            raise RuntimeError(f"the video map has shape {video_map.weight.shape}, not {shape}")
        layout = VectorLayout(semantic, release.config["semantic_weight"], width - semantic)
        return lambda frames: apply_video_map(video_map, backbone, backbone.video_features(frames), layout)

    return load


ANALYTIC_FAMILY = EncoderFamily(
    kind="analytic",
    query_encoder=AnalyticQueryEncoder,
    video_loader=_open_analytic_videos,
    query_prefixes=(_QUERY, _ROUTING, _BACKGROUND),
    video_prefixes=(_VIDEO,),
)
