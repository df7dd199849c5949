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


class TextVectorCaches:
    """The most recently used text vectors, by token IDs, of texts encoded alone (searches) and in batches (evaluation).

    Rounding differs between the two. Threads may share the caches.
    """

    def __init__(self) -> None:
        self.single: LRUCache[bytes, Vectors] = LRUCache(_CACHED_TEXTS)
        self.batched: LRUCache[bytes, Vectors] = LRUCache(_CACHED_TEXTS)
        self.lock = Lock()


class QueryBackbone(ABC):
    """Tokenizer and frozen text tower of a backbone; instances with the same tower may share caches of its vectors."""

    name: str
    fingerprint: str  # of weights, architecture and preprocessing
    dim: int
    vocabulary: int
    weight_bytes: int = 90 * 1024**2  # that the text tower takes in memory; here those of MiniLM
    text_background: TextBackground | None  # of generic texts; None if only releases may have one
    # Converts each text to token IDs [L], including the start and end tokens, without padding.
    tokenize: Callable[[Sequence[str]], list[TokenIds]]

    def __init__(self, caches: TextVectorCaches | None = None) -> None:
        self._caches = caches or TextVectorCaches()

    @property
    @abstractmethod
    def engine(self) -> str:
        """Name and version of the library that runs the text tower."""

    @abstractmethod
    def towers(self) -> Backbone:
        """Load both towers in torch, on the first call."""

    def encode(self, texts: Sequence[TokenIds], *, alone: bool = False) -> Vectors:
        """Encode texts to unit vectors ``[n, dim]``, in batches or, on a CPU, each alone, independent of the others."""
        cache = self._caches.single if alone else self._caches.batched
        keys = [text.tobytes() for text in texts]
        with self._caches.lock:
            cached = {key: cache[key] for key in keys if key in cache}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in cached}
        if missing:
            encode = self._encode_each if alone else self._encode_batch
            # Without a copy, a row would keep its whole batch in memory.
            vectors = [vector.copy() for vector in encode(list(missing.values()))]
            encoded = dict(zip(missing, vectors, strict=True))
            with self._caches.lock:
                cache.update(encoded)
            cached |= encoded
        return np.array([cached[key] for key in keys]) if keys else np.empty((0, self.dim), np.float32)

    def _encode_each(self, texts: Sequence[TokenIds]) -> Iterable[Vectors]:
        """Encode each of n ≥ 1 texts alone, to unit vectors ``[dim]``."""
        return map_in_threads(self._encode_one, texts, core_count())

    @abstractmethod
    def _encode_one(self, text: TokenIds) -> Vectors:
        """Encode a text to a unit vector ``[dim]``. Called from several threads at once."""

    @abstractmethod
    def _encode_batch(self, texts: Sequence[TokenIds]) -> Vectors:
        """Encode n ≥ 1 texts to unit vectors ``[n, dim]``."""


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
