"""Encode query texts in batches, and cache their vectors by text."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy.typing as npt
from cachetools import LRUCache

from index.arrays import Vectors
from models.backbones.backbone_description import TokenIds
from models.encoders.query_encoder import QueryEncoder

DEFAULT_CACHE_BYTES = 64 * 1024**2
_OBJECT_BYTES = 500  # overhead of the Python objects of an entry, roughly


class QueryVectorCache:
    """Encodes texts for tasks, and caches the most recently used tokens and vectors. Thread-safe.

    Args:
        max_bytes: Approximate memory of cached vectors, and of cached tokens.
    """

    def __init__(self, encoder: QueryEncoder, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        def size_of(entry: npt.NDArray[Any]) -> int:
            return min(_OBJECT_BYTES + entry.nbytes, max_bytes)

        self.encoder = encoder
        self._lock = Lock()
        self._tokens: LRUCache[str, TokenIds] = LRUCache(max_bytes, getsizeof=size_of)
        # By text, query mode and task; the task is "" if tasks share a vector.
        self._vectors: LRUCache[tuple[str, str, str], Vectors] = LRUCache(max_bytes, getsizeof=size_of)
        self._identities: dict[tuple[str, str], str | None] = {}

    def clear(self) -> None:
        """Remove all cached texts."""
        with self._lock:
            self._tokens.clear()
            self._vectors.clear()

    def tokens(self, texts: Sequence[str]) -> list[TokenIds]:
        """Tokenize each text, with start and end tokens.

        If tasks share an encoding, new texts are encoded too.
        """
        with self._lock:
            tokens = {text: cached for text in texts if (cached := self._tokens.get(text)) is not None}
        missing = [text for text in dict.fromkeys(texts) if text not in tokens]
        if missing:
            new = dict(zip(missing, self.encoder.tokenize(missing), strict=True))
            self.encoder.prepare_texts(list(new.values()))
            tokens |= new
            with self._lock:
                self._tokens.update(new)
        return [tokens[text] for text in texts]

    def are_words(self, texts: Sequence[str]) -> list[bool]:
        """Check, for each text, whether the tokenizer knows it as one word."""
        return [len(tokens) == 3 for tokens in self.encoder.tokenize(texts)]  # with the start and end tokens

    def __call__(self, pairs: Sequence[tuple[str, str, str]]) -> list[Vectors]:
        """Get the unit vector ``float32 [dim]`` of each (text, mode, task).

        Those not cached are encoded in one batch.
        """
        is_shared = {mode: self.encoder.is_task_independent(mode) for mode in {mode for _, mode, _ in pairs}}
        keys = [(text, mode, "" if is_shared[mode] else task) for text, mode, task in pairs]
        with self._lock:
            vectors = {key: cached for key in keys if (cached := self._vectors.get(key)) is not None}
        missing = {key: task for key, (_, _, task) in zip(keys, pairs, strict=True) if key not in vectors}
        for mode in dict.fromkeys(mode for _, mode, _ in missing):
            batch = [key for key in missing if key[1] == mode]
            tokens, tasks = self.tokens([text for text, _, _ in batch]), [missing[key] for key in batch]
            for key, vector in zip(batch, self.encoder.encode_pairs(tokens, tasks, mode), strict=True):
                vectors[key] = vector.copy()  # a view would keep the whole batch alive
        with self._lock:
            self._vectors.update({key: vectors[key] for key in missing})
        return [vectors[key] for key in keys]

    def encode_uncached(self, texts: Sequence[str], mode: str, task: str) -> Vectors:
        """Encode texts for one task, ``float32 [n, dim]``, without caching them."""
        return self.encoder.encode_pairs(self.encoder.tokenize(texts), [task] * len(texts), mode)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        """Identify the parameters that encode texts for a task; None if a later release can change them."""
        key = task, mode
        if key not in self._identities:  # hashes weights, and may read them first
            self._identities[key] = self.encoder.encoding_identity(task, mode)
        return self._identities[key]
