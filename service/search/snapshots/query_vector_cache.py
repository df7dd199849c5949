"""Encode query texts in batches, and cache their vectors by text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from models.backbones.backbone_description import TokenIds
from models.encoders.query_encoder import QueryEncoder

Vector = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]

DEFAULT_CACHE_BYTES = 64 * 1024**2
# Overhead of the Python objects, as measured.
_TEXT_BYTES = 525
_VECTOR_BYTES = 250


@dataclass(eq=False)
class _CachedText:
    """A text's tokens, and its vectors by query mode and task ("" if tasks share a vector)."""

    text: str
    tokens: TokenIds
    vectors: dict[tuple[str, str], Vector] = field(default_factory=dict)

    def size(self) -> int:
        """Approximate its memory in bytes."""
        vector_bytes = sum(_VECTOR_BYTES + vector.nbytes for vector in self.vectors.values())
        return _TEXT_BYTES + 4 * len(self.text) + self.tokens.nbytes + vector_bytes


class QueryVectorCache:
    """Encodes texts for tasks, and caches the most recently used vectors. Thread-safe.

    Args:
        max_bytes: Maximum memory of cached texts and vectors.

    Attributes:
        max_bytes: Maximum memory of cached texts and vectors.
    """

    def __init__(self, encoder: QueryEncoder, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.encoder = encoder
        self.max_bytes = max_bytes
        self._lock = Lock()
        self._texts: LRUCache[str, _CachedText] = LRUCache(
            max_bytes, getsizeof=lambda cached: min(cached.size(), max_bytes)
        )
        self._identities: dict[tuple[str, str], str | None] = {}

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the cached texts and vectors."""
        return int(self._texts.currsize)

    def __contains__(self, text: str) -> bool:
        return text in self._texts

    def clear(self) -> None:
        """Remove all cached texts."""
        with self._lock:
            self._texts.clear()

    def tokens(self, texts: Sequence[str]) -> list[TokenIds]:
        """Tokenize each text, with start and end tokens.

        If tasks share an encoding, new texts are encoded too.
        """
        return [cached.tokens for cached in self._cached(texts)]

    def are_words(self, texts: Sequence[str]) -> list[bool]:
        """Check, for each text, whether the tokenizer knows it as one word."""
        return [len(tokens) == 3 for tokens in self.encoder.tokenize(texts)]  # with the start and end tokens

    def __call__(self, pairs: Sequence[tuple[str, str, str]]) -> list[Vector]:
        """Get the unit vector ``float32 [dim]`` of each (text, mode, task).

        Those not cached are encoded in one batch.
        """
        texts = list(dict.fromkeys(text for text, _, _ in pairs))
        cached = dict(zip(texts, self._cached(texts), strict=True))
        is_shared = {mode: self.encoder.is_task_independent(mode) for mode in {mode for _, mode, _ in pairs}}
        keys = [(text, mode, "" if is_shared[mode] else task) for text, mode, task in pairs]
        with self._lock:
            vectors = {
                key: cached[key[0]].vectors[key[1:]] for key in keys if key[1:] in cached[key[0]].vectors
            }
        missing = {key: task for key, (_, _, task) in zip(keys, pairs, strict=True) if key not in vectors}
        for mode in dict.fromkeys(mode for _, mode, _ in missing):
            batch = [key for key in missing if key[1] == mode]
            tokens, tasks = [cached[text].tokens for text, _, _ in batch], [missing[key] for key in batch]
            for key, vector in zip(batch, self.encoder.encode_pairs(tokens, tasks, mode), strict=True):
                vectors[key] = vector.copy()  # a view would keep the whole batch alive
        with self._lock:
            for key in missing:
                cached[key[0]].vectors.setdefault(key[1:], vectors[key])
            for text in dict.fromkeys(text for text, _, _ in missing):
                if self._texts.get(text) is cached[text]:
                    self._texts[text] = cached[text]  # stored again: its size changed
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

    def _cached(self, texts: Sequence[str]) -> list[_CachedText]:
        with self._lock:
            found = {text: cached for text in texts if (cached := self._texts.get(text)) is not None}
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        if missing:
            tokenized = zip(missing, self.encoder.tokenize(missing), strict=True)
            new = [_CachedText(text, tokens) for text, tokens in tokenized]
            self.encoder.prepare_texts([entry.tokens for entry in new])
            with self._lock:
                for entry in new:
                    known = self._texts.get(entry.text)  # another thread may have added it
                    if known is None:
                        self._texts[entry.text] = known = entry
                    found[entry.text] = known
        return [found[text] for text in texts]
