"""Maps of the analytic method: from frozen features to vectors of videos and queries. This module imports no torch.

A vector has three parts: the *semantic* part in the backbone's text space, the *lexical* part in a space for the
domain's own words, and two coordinates that complete queries and videos to unit length. With the semantic weight β, the
cosine between a query q and a video v is

    β · cos(semantic q, semantic v) + (1 − β) · κ(q) · cos(lexical q, lexical v)

where κ(q) is the length of the query's lexical vector: at most the square root of the share of its squared IDF weight
that falls on words of the domain's captions. In libraries of version 1.0.0 on other backbones than ``small``, a vector
has only the semantic part.

:class:`AnalyticMapSet` applies the query maps of many tasks to many pairs of text and task in one batch. A set is a
range of tasks in a *storage*: concatenated arrays with spare capacity. Sets are immutable and share storages; the maps
are copied only if another set has taken the next rows, or the capacity is used up. A pair's vector is the same bit for
bit in any batch and any set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from threading import Lock
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from models.backbones.backbone_description import pad_texts
from models.routing.routing_profiles import VOCABULARY

_LEXICAL = 126  # coordinates for words
_COMPLETIONS = 2  # coordinates that complete queries and videos to unit length
MIN_LENGTH = 1e-8  # lower bound on lengths that vectors are divided by

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class VectorLayout:
    """Sizes of a vector's parts; without lexical coordinates, the semantic part has all the weight."""

    semantic: int
    semantic_weight: float
    lexical: int = _LEXICAL

    @property
    def dim(self) -> int:
        """Coordinates of a vector."""
        return self.semantic + (self.lexical + _COMPLETIONS if self.lexical else 0)

    def join(self, semantic: Floats, lexical: Floats, *, is_video: bool) -> Floats:
        """Join parts of at most unit length, ``[n, semantic]`` and ``[n, lexical]``, to unit vectors ``[n, dim]``.

        Queries and videos are completed to unit length in different coordinates, so that this adds nothing to their
        cosine.
        """
        if not self.lexical:
            return normalize_rows(semantic)
        beta, size = self.semantic_weight, self.semantic + self.lexical
        vectors = np.zeros((len(semantic), self.dim), np.float32)
        np.multiply(semantic, np.float32(beta**0.5), out=vectors[:, : self.semantic])
        np.multiply(lexical, np.float32((1 - beta) ** 0.5), out=vectors[:, self.semantic : size])
        parts = vectors[:, :size]
        rest = np.sqrt(np.maximum(1 - np.vecdot(parts, parts), 0))
        vectors[:, size if is_video else size + 1] = rest
        return normalize_rows(vectors)


def normalize_rows(vectors: Floats, shortest: float = 1e-12) -> Floats:
    """Divide each row of ``vectors [n, d]`` by its length, at least ``shortest``; bit for bit the same in any batch."""
    lengths = np.maximum(np.sqrt(np.vecdot(vectors, vectors)), np.float32(shortest))
    return np.asarray(vectors / lengths[:, None], np.float32)


class _ArrayFields:
    """A dataclass of arrays, which a release stores by name."""

    def tensors(self) -> dict[str, Array]:
        """Collect the arrays by name, as a release stores them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> Self:
        """Restore a map from a release's tensors; raise KeyError if one is missing."""
        return cls(**{field.name: tensors[field.name] for field in fields(cls)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class AnalyticVideoMap(_ArrayFields):
    """Affine map from video features to both parts of video vectors."""

    weight: Floats  # [F, semantic + lexical]
    offset: Floats  # [semantic + lexical]
    zero_shot_weight: Floats  # weight γ of the backbone's own vector within the semantic part, []

    def __call__(self, features: Floats, projected: Floats, layout: VectorLayout) -> Floats:
        """Map features ``[n, F]``, and the backbone's own vectors for them, ``[n, ≥ semantic]``, to unit vectors
        ``[n, dim]``.
        """
        mapped = features @ self.weight + self.offset
        semantic, lexical = mapped[:, : layout.semantic], mapped[:, layout.semantic :]
        semantic = normalize_rows(semantic + self.zero_shot_weight * projected[:, : layout.semantic])
        return layout.join(semantic, normalize_rows(lexical, MIN_LENGTH), is_video=True)


@dataclass(frozen=True)
class AnalyticQueryMap(_ArrayFields):
    """Arrays that turn a text's frozen vector and tokens into its query vector for one domain."""

    center: Floats  # the domain's mean caption, which its queries are centered on, [semantic]
    # the domain's mean caption in its routing evidence, [semantic]; empty without captions
    caption_mean: Floats
    tokens: npt.NDArray[np.int64]  # word pieces in the domain's captions, ascending, [V] int64
    token_weights: Floats  # inverse document frequency of each token, [V]
    unknown_token_weight: Floats  # weight of a token that no caption of the domain contains, []
    # lexical vector of each token, [V, lexical]; learned maps keep half precision, to save memory
    lexicon: npt.NDArray[np.floating]

    @classmethod
    def neutral(cls, layout: VectorLayout) -> Self:
        """Build the map for a domain without captions: the frozen vector, no words, no routing evidence."""
        none = np.empty(0, np.float32)
        return cls(
            center=np.zeros(layout.semantic, np.float32),
            caption_mean=none,
            tokens=none.astype(np.int64),
            token_weights=none,
            unknown_token_weight=np.zeros((), np.float32),
            lexicon=np.empty((0, layout.lexical), np.float32),
        )


Ints = npt.NDArray[np.int64]

_BATCH_PAIRS = 1024  # pairs whose token rows are gathered at once, some megabytes
_SPARE = 0.5  # spare capacity of a new storage, as a share of its maps; memory is occupied only when written


class _Storage:
    """Maps of T tasks, with room for more: arrays by task ``[≥ T]``, and by their tokens ``[≥ R]``."""

    def __init__(self, layout: VectorLayout, tasks: int, rows: int, dtype: npt.DTypeLike) -> None:
        tasks, rows = (int(count * (1 + _SPARE)) for count in (tasks, rows))
        self.centers = np.empty((tasks, layout.semantic), np.float32)
        self.caption_means = np.empty((tasks, layout.semantic), np.float32)  # in the routing evidence
        self.has_captions = np.empty(tasks, np.bool_)  # whether a task has a mean caption
        self.unknown_weights = np.empty(tasks, np.float32)
        self.is_frozen = np.empty(tasks, np.bool_)  # whether a task is queried with the frozen vector itself
        self.ends = np.empty(tasks, np.int64)  # number of rows up to the end of each task
        self.keys = np.empty(rows, np.int64)  # V × task number + token, ascending
        self.weights = np.empty(rows, np.float32)  # inverse document frequency of each token
        self.lexicon = np.empty((rows, layout.lexical), dtype)
        self.tasks = 0
        self.lock = Lock()

    def start(self, task: int) -> int:
        """Find a task's first row."""
        return int(self.ends[task - 1]) if task else 0

    def has_space(self, tasks: int, rows: int, dtype: npt.DTypeLike) -> bool:
        """Check whether tasks with this many rows fit, and their lexicons keep their precision."""
        return (
            self.tasks + tasks <= len(self.ends)
            and self.start(self.tasks) + rows <= len(self.keys)
            and self.lexicon.dtype == dtype
        )

    def append(self, query_map: AnalyticQueryMap, *, is_frozen: bool) -> None:
        """Add a task's map."""
        task, start = self.tasks, self.start(self.tasks)
        end = start + len(query_map.tokens)
        self.centers[task] = query_map.center
        self.has_captions[task] = has_captions = len(query_map.caption_mean) > 0
        self.caption_means[task] = query_map.caption_mean if has_captions else 0
        self.unknown_weights[task] = query_map.unknown_token_weight
        self.is_frozen[task] = is_frozen
        self.ends[task] = end
        self.keys[start:end] = query_map.tokens + task * VOCABULARY
        self.weights[start:end] = query_map.token_weights
        self.lexicon[start:end] = query_map.lexicon
        self.tasks += 1

    def map(self, task: int) -> AnalyticQueryMap | None:
        """View a task's map without copying its lexicon; None if the task is queried with the frozen vector."""
        if self.is_frozen[task]:
            return None
        rows = slice(self.start(task), int(self.ends[task]))
        return AnalyticQueryMap(
            center=self.centers[task],
            caption_mean=self.caption_means[task, : None if self.has_captions[task] else 0],
            tokens=self.keys[rows] - task * VOCABULARY,
            token_weights=self.weights[rows],
            unknown_token_weight=self.unknown_weights[task],
            lexicon=self.lexicon[rows],
        )


class AnalyticMapSet:
    """Query maps of T tasks; None for a task that is queried with the frozen vector itself."""

    def __init__(self, layout: VectorLayout, maps: Sequence[AnalyticQueryMap | None] = ()) -> None:
        self.layout = layout
        self._neutral = AnalyticQueryMap.neutral(layout)
        self._first = self._count = 0
        self._storage = _Storage(layout, 0, 0, np.float16)
        if maps:
            self._copy_and_append(maps)

    def __len__(self) -> int:
        return self._count

    @property
    def caption_means(self) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Each task's mean caption ``[T, semantic]``, and whether it has one ``[T]``."""
        tasks = slice(self._first, self._first + self._count)
        return self._storage.caption_means[tasks], self._storage.has_captions[tasks]

    def extended(self, maps: Sequence[AnalyticQueryMap | None]) -> AnalyticMapSet:
        """Append maps of more tasks, in a new set."""
        result = self.part(0, self._count)
        storage, rows = self._storage, sum(len(query_map.tokens) for query_map in maps if query_map)
        with storage.lock:
            is_last = self._first + self._count == storage.tasks
            if is_last and storage.has_space(len(maps), rows, self._precision(maps)):
                result._append(maps)
                return result
        if maps:
            result._copy_and_append(maps)
        return result

    def part(self, start: int, stop: int) -> AnalyticMapSet:
        """Select the tasks ``start`` to ``stop - 1``, without copying them."""
        part = copy(self)
        part._first, part._count = self._first + start, stop - start
        return part

    def map(self, position: int) -> AnalyticQueryMap | None:
        """View a task's map; None if the task is queried with the frozen vector itself."""
        return self._storage.map(self._first + position)

    def tensors(self, position: int) -> dict[str, Array] | None:
        """Collect by name the arrays that a task's query vectors depend on; None for a task without a map."""
        query_map = self.map(position)
        if query_map is None:
            return None
        tensors = query_map.tensors() | {"lexicon": query_map.lexicon.astype(np.float32)}
        del tensors["caption_mean"]
        return tensors

    def __call__(self, frozen: Floats, texts: Sequence[Ints], rows: Ints, positions: Ints) -> Floats:
        """Compute unit query vectors for P pairs of a text (row) and a task (position), ``[P, dim]``, from the n texts'
        unit vectors in the backbone's space ``[n, dim]`` and their distinct word pieces, ascending.
        """
        tokens = pad_texts(texts, -1)
        vectors = np.empty((len(rows), self.layout.dim), np.float32)
        for start in range(0, len(rows), _BATCH_PAIRS):
            batch = slice(start, start + _BATCH_PAIRS)
            chosen, tasks = rows[batch], positions[batch] + self._first
            vectors[batch] = self._apply(frozen[chosen], tokens[chosen], tasks)
        return vectors

    def cosines(
        self, frozen: Floats, texts: Sequence[Ints], positions: Sequence[int], shards: Iterable[Floats]
    ) -> Iterator[Floats]:
        """Yield, for each task (position), the cosines ``[n, N]`` of n texts, given as in :meth:`__call__`, with its
        video vectors ``[N, dim]``; up to rounding, since no query vector is computed, which takes most of the time.
        """
        storage, size = self._storage, self.layout.semantic
        beta = self.layout.semantic_weight if self.layout.lexical else 1.0
        distinct, inverse = np.unique(np.concatenate(texts), return_inverse=True)
        columns = np.full(VOCABULARY, -1)
        columns[distinct] = np.arange(len(distinct))
        presence = np.zeros((len(distinct), len(texts)), np.float32)
        presence[inverse, np.repeat(np.arange(len(texts)), [*map(len, texts)])] = 1
        counts = presence.sum(axis=0)
        for position, videos in zip(positions, shards, strict=True):
            task = self._first + position
            if storage.is_frozen[task]:
                yield frozen @ videos.T
                continue
            semantic = normalize_rows(frozen[:, :size] - storage.centers[task]) @ videos[:, :size].T
            first = storage.start(task)
            found = columns[storage.keys[first : storage.ends[task]] - task * VOCABULARY]
            rows = first + (found >= 0).nonzero()[0]
            words, weights = presence[found[found >= 0]], storage.weights[rows]
            unknown = storage.unknown_weights[task] ** 2 * (counts - words.sum(axis=0))
            lengths = np.maximum(np.sqrt(weights**2 @ words + unknown), np.float32(MIN_LENGTH))
            lexicon = (
                weights[:, None] * storage.lexicon[rows] @ videos[:, size : size + self.layout.lexical].T
            )
            lexical = words.T @ lexicon / lengths[:, None]
            yield np.float32(beta**0.5) * semantic + np.float32((1 - beta) ** 0.5) * lexical

    def _apply(self, frozen: Floats, tokens: Ints, tasks: Ints) -> Floats:
        """Map frozen vectors ``[P, dim]`` with tokens ``[P, L]`` for one task of the storage each, ``[P, dim]``."""
        semantic = normalize_rows(frozen[:, : self.layout.semantic] - self._storage.centers[tasks])
        lexical = self._lexical(tokens, tasks)
        vectors = self.layout.join(semantic, lexical, is_video=False)
        is_frozen = self._storage.is_frozen[tasks]
        if is_frozen.any():
            vectors[is_frozen] = frozen[is_frozen]
        return vectors

    def _lexical(self, tokens: Ints, tasks: Ints) -> Floats:
        """Compute the lexical vectors ``[P, lexical]``."""
        storage, rows = self._storage, self._rows
        lexical = np.zeros((len(tokens), self.layout.lexical), np.float32)
        if not self.layout.lexical or rows.start == rows.stop or not tokens.shape[1]:
            return lexical
        known_keys = storage.keys[rows]
        keys = tokens + (tasks * VOCABULARY)[:, None]
        index = np.minimum(np.searchsorted(known_keys, keys), len(known_keys) - 1)
        # A padded key sorts before the task's tokens, where it could equal the previous task's last key.
        is_word = tokens >= 0
        is_known = (known_keys[index] == keys) & is_word
        unknown = storage.unknown_weights[tasks][:, None]
        weights = np.where(is_known, storage.weights[rows][index], unknown) * is_word
        # Summed from left to right, so that padding changes no bit.
        squares = np.cumsum(weights * weights, axis=1)[:, -1]
        shares = weights / np.maximum(np.sqrt(squares), np.float32(MIN_LENGTH))[:, None]
        pairs, columns = is_known.nonzero()
        values = storage.lexicon[rows][index[pairs, columns]].astype(np.float32)
        values *= shares[pairs, columns][:, None]
        # Add each pair's first known token, then the second ones, and so on.
        number = np.cumsum(is_known, axis=1)[pairs, columns]
        for count in range(1, int(number.max(initial=0)) + 1):
            chosen = number == count
            lexical[pairs[chosen]] += values[chosen]
        return lexical

    @property
    def _rows(self) -> slice:
        """Where the set's tasks are in the storage."""
        return slice(self._storage.start(self._first), self._storage.start(self._first + self._count))

    def _precision(self, maps: Sequence[AnalyticQueryMap | None]) -> np.dtype[np.floating]:
        """Find the common precision of this set's lexicons and others; empty lexicons have none."""
        lexicons = [query_map.lexicon for query_map in maps if query_map is not None]
        lexicons.append(self._storage.lexicon[self._rows])
        return np.result_type(np.float16, *(lexicon.dtype for lexicon in lexicons if len(lexicon)))

    def _append(self, maps: Sequence[AnalyticQueryMap | None]) -> None:
        """Add tasks to the storage, whose last tasks belong to this new set."""
        for query_map in maps:
            self._storage.append(query_map or self._neutral, is_frozen=query_map is None)
        self._count += len(maps)

    def _copy_and_append(self, maps: Sequence[AnalyticQueryMap | None]) -> None:
        """Move this new set to a storage of its own, and add tasks."""
        copies = [self.map(position) for position in range(self._count)]
        all_maps = [*copies, *maps]
        rows = sum(len(query_map.tokens) for query_map in all_maps if query_map is not None)
        self._storage = _Storage(self.layout, len(all_maps), rows, self._precision(maps))
        self._first = self._count = 0
        self._append(all_maps)
