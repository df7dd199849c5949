"""Family of closed-form maps: the towers stay frozen, and every shard keeps the maps of its own release.

A text passes the text tower once, for all tasks; each task then adds a few vector operations. The cost of a search
hardly depends on the number of its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from cachetools import LRUCache
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from models.adapters.analytic_map_set import AnalyticMapSet
from models.adapters.analytic_maps import AnalyticQueryMap, AnalyticVideoMap, VectorLayout
from models.backbones.backbone import Backbone
from models.backbones.tower_computation import mixed_precision
from models.encoders.encoder_family import EncoderFamily, FamilyVideoEncoder
from models.encoders.families.tower_family import FROZEN_FAMILY
from models.encoders.query_encoder import (
    QueryEncoder,
    QueryEncoderInputs,
    TokenIds,
    adapter_identity,
    thread_pool,
)
from models.encoders.tower_forward import encode_texts
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState, tensors_with_prefix
from models.routing.caption_evidence import CaptionEvidence, CaptionScatter

Vectors = npt.NDArray[np.float32]

_QUERY, _VIDEO, _ROUTING = "query.", "video.", "evidence."
_CACHED_TEXTS = (
    8192  # 2 KiB each; more than the captions and queries that one task is calibrated and measured with
)


class TextVectorCache:
    """The most recently used vectors of texts, by token ids. Safe to share between threads."""

    def __init__(self, size: int) -> None:
        self._vectors: LRUCache[bytes, Tensor] = LRUCache(size)
        self._lock = Lock()

    def find(self, key: bytes) -> Tensor | None:
        """Vector ``[dim]`` of a text; None if it is not in the cache."""
        with self._lock:
            return self._vectors.get(key)

    def put(self, key: bytes, vector: Tensor) -> Tensor:
        """Keep the vector of a text."""
        with self._lock:
            self._vectors[key] = vector
        return vector


_text_caches: WeakKeyDictionary[Backbone, dict[tuple[bool, str], TextVectorCache]] = WeakKeyDictionary()


def _text_cache(backbone: Backbone, *, mixed_precision: bool, group: str) -> TextVectorCache:
    """Cache of the frozen vectors of a backbone, which all encoders of the process share."""
    caches = _text_caches.setdefault(backbone, {})
    return caches.setdefault((mixed_precision, group), TextVectorCache(_CACHED_TEXTS))


class AnalyticQueryEncoder(QueryEncoder):
    """The frozen text tower, with the query map of each shard's release, or with the newest map for all tasks."""

    modes = ("latest", "pinned")
    shares_text_encoding = True
    _pinned: AnalyticMapSet
    _caption_means: list[Tensor]  # empty tensors for tasks without one

    def __init__(self, inputs: QueryEncoderInputs) -> None:
        super().__init__(inputs)
        backbone, release = inputs.backbone, inputs.release
        self._layout = VectorLayout.for_backbone(backbone, release.config["semantic_weight"])
        self._profile_factor: float = release.config["word_evidence"]
        reused = inputs.previous if isinstance(inputs.previous, AnalyticQueryEncoder) else None
        newest = self._load(release)
        self._newest = self._map_set([newest])
        # The maps of the common first tasks are shared with the previous encoder, not copied.
        pairs = zip(self.tasks, reused.tasks if reused else (), strict=False)
        unchanged = inputs.unchanged_tasks
        first = len(list(takewhile(lambda pair: pair[0] == pair[1] and pair[0] in unchanged, pairs)))
        self._pinned = reused._pinned.part(0, first) if reused else self._map_set([])
        self._caption_means = reused._caption_means[:first] if reused else []
        added: list[AnalyticQueryMap | None] = []
        for task in self.tasks[first:]:
            if reused and task in unchanged:
                place = reused._position[task]
                self._pinned += self._map_set(added) + reused._pinned.part(place, place + 1)
                self._caption_means.append(reused._caption_means[place])
                added = []
                continue
            query_map = self._load(inputs.pinned_release(task))
            added.append(query_map)
            self._caption_means.append(query_map.caption_mean if query_map is not None else torch.empty(0))
        self._pinned += self._map_set(added)
        # Vectors of texts that were encoded alone (searches) and in batches (evaluation), which differ in rounding.
        self._single, self._batched = (
            _text_cache(self._backbone, mixed_precision=self._uses_mixed_precision, group=group)
            for group in ("single", "batched")
        )
        self._caption_evidence = self._open_caption_evidence(release)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        if mode != "pinned":
            return None
        tensors = self._pinned.tensors(self._position[task])
        if tensors is None:
            return self._backbone.fingerprint
        return adapter_identity([self._backbone.fingerprint, self._layout.semantic_weight], tensors)

    def is_task_independent(self, mode: str) -> bool:
        return mode == "latest"

    @torch.inference_mode()
    def encode_pairs(self, texts: Sequence[TokenIds], tasks: Sequence[str], mode: str = "latest") -> Vectors:
        # A text passes the tower once for all its tasks, and alone: its vector does not depend on other requests.
        positions = self._positions(tasks, mode)
        if not texts:
            return np.empty((0, self._backbone.dim), np.float32)
        places: dict[bytes, int] = {}
        rows = [places.setdefault(text.tobytes(), len(places)) for text in texts]
        distinct = [np.frombuffer(text, np.int64) for text in places]
        frozen = self._encode_texts(distinct)
        words = [torch.from_numpy(np.unique(text[1:-1])) for text in distinct]
        tokens = pad_sequence(words, batch_first=True, padding_value=-1)
        vectors = self._apply(frozen, tokens, torch.tensor(rows), torch.tensor(positions), mode)
        return np.ascontiguousarray(vectors.float().cpu().numpy())

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        frozen, tokens = self._encode_batch(ids), self._distinct_tokens(ids)
        chosen = torch.tensor([0] if mode == "latest" else positions)
        rows = torch.arange(len(ids)).repeat(len(chosen))
        vectors = self._apply(frozen, tokens, rows, chosen.repeat_interleave(len(ids)), mode)
        return vectors.view(len(chosen), len(ids), -1)

    @torch.inference_mode()
    def prepare_texts(self, texts: Sequence[TokenIds]) -> None:
        if texts:
            self._encode_texts(texts)

    @torch.inference_mode()
    def routing_evidence(self, texts: Sequence[TokenIds], tasks: Sequence[str]) -> Vectors | None:
        if self._caption_evidence is None or not texts:
            return None
        positions = torch.tensor([self._position[task] for task in tasks])
        return np.asarray(self._caption_evidence(self._encode_texts(texts), positions).numpy(), np.float32)

    @property
    def profile_factor(self) -> float:
        return self._profile_factor

    @property
    def routing_identity(self) -> str:
        return self._routing_identity

    @property
    def pinned_bytes(self) -> int:
        return self._pinned.bytes

    def _open_caption_evidence(self, release: ReleaseState) -> CaptionEvidence | None:
        background, self._routing_identity = self._backbone.text_background, ""
        if background is None:
            return None
        tensors = tensors_with_prefix(_ROUTING, release.tensors)
        scatter, factor = CaptionScatter.from_tensors(tensors), release.config["caption_evidence"]
        means = [mean if len(mean) else None for mean in self._caption_means]
        self._routing_identity = adapter_identity([self._backbone.fingerprint, factor], tensors)
        return CaptionEvidence(scatter, background, means, factor) if means else None

    def _map_set(self, maps: Sequence[AnalyticQueryMap | None]) -> AnalyticMapSet:
        return AnalyticMapSet.of(maps, self._layout, self._backbone.vocabulary, self._backbone.device)

    def _apply(self, frozen: Tensor, tokens: Tensor, rows: Tensor, positions: Tensor, mode: str) -> Tensor:
        """Vectors ``[P, dim]`` of pairs of a text and a task, see :class:`AnalyticMapSet`."""
        device = self._backbone.device
        rows, positions = rows.to(device), positions.to(device)
        if mode == "latest":
            return self._newest(frozen, tokens.to(device), rows, torch.zeros_like(positions))
        return self._pinned(frozen, tokens.to(device), rows, positions)

    def _encode_texts(self, texts: Sequence[TokenIds]) -> Tensor:
        """Frozen vectors ``[n, dim]`` of texts, each encoded alone, in parallel where torch itself uses one thread."""
        keys = [text.tobytes() for text in texts]
        found = {key: vector for key in keys if (vector := self._single.find(key)) is not None}
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        if len(missing) > 1 and self._backbone.device.type == "cpu" and torch.get_num_threads() == 1:
            encoded: Iterable[Tensor] = thread_pool().map(self._encode_text, missing)
        else:
            encoded = map(self._encode_text, missing)
        found.update(zip(missing, encoded, strict=True))
        return torch.stack([found[key] for key in keys])

    def _encode_text(self, key: bytes) -> Tensor:
        """Frozen vector ``[dim]`` of a text without padding, whose token ids are given as bytes."""
        ids = torch.from_numpy(np.frombuffer(key, np.int64).copy())[None]
        # Both contexts apply only to the thread that enters them.
        with torch.inference_mode(), mixed_precision(enabled=self._uses_mixed_precision):
            return self._single.put(key, encode_texts(self._backbone, ids)[0, 0])

    def _encode_batch(self, ids: Tensor) -> Tensor:
        """Frozen vectors ``[n, dim]`` of padded texts."""
        ends = self._backbone.end_of_text(ids).tolist()
        keys = [row[: end + 1].tobytes() for row, end in zip(ids.cpu().numpy(), ends, strict=True)]
        found = {key: vector for key in keys if (vector := self._batched.find(key)) is not None}
        missing = [row for row, key in enumerate(keys) if key not in found]
        if missing:
            computed = encode_texts(self._backbone, ids[missing])[0]
            for row, vector in zip(missing, computed, strict=True):
                found[keys[row]] = self._batched.put(keys[row], vector)
        return torch.stack([found[key] for key in keys])

    def _distinct_tokens(self, ids: Tensor) -> Tensor:
        """Distinct tokens of each text without the start and end tokens, padded with −1, ``[n, L]``."""
        end = self._backbone.end_of_text(ids)
        position = torch.arange(ids.shape[1], device=ids.device)
        is_word = (position > 0) & (position < end.unsqueeze(1))
        ordered = torch.where(is_word, ids, -1).sort(dim=1).values
        is_repeated = torch.zeros_like(is_word)
        is_repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        return ordered.masked_fill(is_repeated, -1)

    def _load(self, release: ReleaseState) -> AnalyticQueryMap | None:
        """Query map of a release; None for a frozen release, whose shard is queried with the backbone alone.

        Raises:
            ReleaseError: The tensors of the release do not fit the backbone.
        """
        if release.kind == FROZEN_FAMILY.kind:
            return None
        try:
            query_map = AnalyticQueryMap.from_tensors(
                tensors_with_prefix(_QUERY, release.tensors), self._backbone.device
            )
        except KeyError as error:
            raise ReleaseError(f"the query map of the release has no tensor {error}") from error
        sizes = (len(query_map.center), query_map.lexicon.shape[-1])
        if sizes != (self._layout.semantic, self._layout.lexical):
            raise ReleaseError(
                f"the query map of the release is for {sizes[0]} semantic and {sizes[1]} lexical coordinates, but "
                f"{self._backbone.name!r} has {self._layout.semantic} and {self._layout.lexical}"
            )
        return query_map


class AnalyticVideoEncoder(FamilyVideoEncoder):
    """The frozen image tower and an affine map of its features."""

    def load(self, release: ReleaseState) -> Callable[[Tensor], Tensor]:
        backbone: Backbone = self._backbone
        video_map = AnalyticVideoMap.from_tensors(
            tensors_with_prefix(_VIDEO, release.tensors), backbone.device
        )
        layout = VectorLayout.for_backbone(backbone, release.config["semantic_weight"])
        if video_map.weight.shape != (backbone.feature_dim, layout.semantic + layout.lexical):
            raise RuntimeError(
                f"the video map has shape {tuple(video_map.weight.shape)}, not "
                f"{(backbone.feature_dim, layout.semantic + layout.lexical)}"
            )
        return lambda frames: video_map(backbone, backbone.video_features(frames), layout)


ANALYTIC_FAMILY = EncoderFamily(
    kind="analytic",
    query_encoder=AnalyticQueryEncoder,
    video_encoder=AnalyticVideoEncoder,
    query_prefixes=(_QUERY, _ROUTING),
    video_prefixes=(_VIDEO,),
)
