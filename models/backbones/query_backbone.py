"""The text side of a backbone, for query encoders: tokens and vectors as arrays. This module imports no torch."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from models.backbones.backbone_description import TextBackground, TokenIds
from models.backbones.tower_threads import core_count, map_in_threads

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone

Vectors = npt.NDArray[np.float32]

# Of 2 KiB each; more than the captions and queries that one task is calibrated and measured with.
_CACHED_TEXTS = 8192


class TextVectorCache:
    """The most recently used text vectors, by token IDs. Threads may share it."""

    def __init__(self, size: int = _CACHED_TEXTS) -> None:
        self._vectors: LRUCache[bytes, Vectors] = LRUCache(size)
        self._lock = Lock()

    def find(self, key: bytes) -> Vectors | None:
        """Look up a text's vector ``[dim]``; None if it is not in the cache."""
        with self._lock:
            return self._vectors.get(key)

    def put(self, key: bytes, vector: Vectors) -> Vectors:
        """Keep a text's vector, and return it."""
        with self._lock:
            self._vectors[key] = vector
        return vector


class TextVectorCaches:
    """Separate caches for texts encoded alone (searches) and in batches (evaluation): rounding differs."""

    def __init__(self) -> None:
        self.single, self.batched = TextVectorCache(), TextVectorCache()


class QueryBackbone(ABC):
    """Tokenizer and frozen text tower of a backbone.

    Args:
        caches: Caches for the tower's vectors; instances with the same tower may share them.

    Attributes:
        fingerprint: Digest of weights, architecture and preprocessing.
        reserved_dims: How many of the last coordinates are zero in every vector of the frozen towers.
        text_background: Distribution of generic texts; None if the backbone has none.
    """

    name: str
    fingerprint: str
    dim: int
    vocabulary: int
    reserved_dims: int
    text_background: TextBackground | None

    def __init__(self, caches: TextVectorCaches | None = None) -> None:
        self._caches = caches or TextVectorCaches()

    @property
    @abstractmethod
    def engine(self) -> str:
        """Name and version of the library that runs the text tower."""

    @abstractmethod
    def towers(self) -> Backbone:
        """Load both towers in torch, on the first call."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> list[TokenIds]:
        """Convert each text to token IDs ``[L]``, including the start and end tokens, without padding."""

    def encode_alone(self, texts: Sequence[TokenIds]) -> Vectors:
        """Encode each text alone, so that its vector does not depend on the others: unit vectors ``[n, dim]``."""
        return self._encode_missing(texts, self._caches.single, self._encode_each)

    def encode_together(self, texts: Sequence[TokenIds]) -> Vectors:
        """Encode texts in batches: unit vectors ``[n, dim]``."""
        return self._encode_missing(texts, self._caches.batched, self._encode_batch)

    def _encode_each(self, texts: Sequence[TokenIds]) -> Iterable[Vectors]:
        """Encode each of n ≥ 1 texts alone, to unit vectors ``[dim]``."""
        threads = core_count() if self._encodes_in_one_thread() else 1
        return map_in_threads(self._encode_one, texts, threads)

    @abstractmethod
    def _encode_one(self, text: TokenIds) -> Vectors:
        """Encode a text to a unit vector ``[dim]``. Called from several threads at once."""

    @abstractmethod
    def _encode_batch(self, texts: Sequence[TokenIds]) -> Vectors:
        """Encode n ≥ 1 texts to unit vectors ``[n, dim]``."""

    def _encodes_in_one_thread(self) -> bool:
        """Check whether :meth:`_encode_one` leaves the other cores to concurrent calls."""
        return True

    def _encode_missing(
        self,
        texts: Sequence[TokenIds],
        cache: TextVectorCache,
        encode: Callable[[Sequence[TokenIds]], Iterable[Vectors]],
    ) -> Vectors:
        keys = [text.tobytes() for text in texts]
        found = {key: vector for key in keys if (vector := cache.find(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            for key, vector in zip(missing, encode(list(missing.values())), strict=True):
                # Without a copy, a row would keep its whole batch in memory.
                found[key] = cache.put(key, vector.copy())
        return np.array([found[key] for key in keys]) if keys else np.empty((0, self.dim), np.float32)


_threads: int | None = None  # that torch uses, in a process that may import it later or never


def set_torch_threads(threads: int) -> None:
    """Set how many threads one torch operation uses in this process."""
    global _threads
    _threads = threads
    if "torch" in sys.modules:
        apply_torch_threads()


def apply_torch_threads() -> None:
    """Apply the number of threads, if set. Called by code that imports torch on use."""
    if _threads is not None:
        import torch

        torch.set_num_threads(_threads)
