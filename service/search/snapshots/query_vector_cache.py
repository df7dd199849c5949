"""Query vectors of texts: encoded in shared batches and cached by text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from models.encoders.query_encoder import QueryEncoder, TokenIds
from service.search.batch_scheduler import BatchScheduler

__all__ = ["DEFAULT_CACHE_BYTES", "QueryVectorCache"]

Vector = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]

DEFAULT_CACHE_BYTES = 64 * 1024**2
_ENTRY_BYTES = 200  # overhead of a Python object per text and per vector
_MAX_BATCH = 256  # vectors per batch that several callers share


@dataclass(eq=False)
class _CachedText:
    """A text with its tokens, and its vectors by query mode and task; "" is the task of a shared vector."""

    text: str
    tokens: TokenIds
    vectors: dict[tuple[str, str], Vector] = field(default_factory=dict)

    def size(self) -> int:
        """Approximate memory in bytes."""
        vector_bytes = sum(_ENTRY_BYTES + vector.nbytes for vector in self.vectors.values())
        return _ENTRY_BYTES + 4 * len(self.text) + self.tokens.nbytes + vector_bytes


class _EncodingJob(NamedTuple):
    key: tuple[str, str, str]  # text, query mode and task; "" where all tasks share the vector
    tokens: TokenIds
    task: str


class QueryVectorCache:
    """Encodes texts for tasks and caches the most recently used vectors. Thread-safe.

    Texts that several threads need at the same time are encoded in one batch.

    Args:
        encoder: Encoder of a release.
        max_bytes: Maximum memory of cached texts and vectors.

    Attributes:
        encoder: Encoder of the release.
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
        # Bound to the encoder instead of to this object: a reference cycle would keep the weights of a former snapshot.
        self._scheduler: BatchScheduler[_EncodingJob, Vector] = BatchScheduler(
            partial(_encode_batch, encoder), max_batch=_MAX_BATCH
        )

    @property
    def size_bytes(self) -> int:
        """Approximate memory of cached texts and vectors."""
        return int(self._texts.currsize)

    def __contains__(self, text: str) -> bool:
        return text in self._texts

    def clear(self) -> None:
        """Remove all cached texts."""
        with self._lock:
            self._texts.clear()

    def tokens(self, texts: Sequence[str]) -> list[TokenIds]:
        """Tokens of each text, including the start and end tokens."""
        return [cached.tokens for cached in self._cached(texts)]

    def __call__(self, pairs: Sequence[tuple[str, str, str]]) -> list[Vector]:
        """The unit vector ``float32 [dim]`` of each (text, mode, task)."""
        texts = list(dict.fromkeys(text for text, _, _ in pairs))
        cached = dict(zip(texts, self._cached(texts), strict=True))
        is_shared = {mode: self.encoder.is_task_independent(mode) for mode in {mode for _, mode, _ in pairs}}
        jobs = [
            _EncodingJob((text, mode, "" if is_shared[mode] else task), cached[text].tokens, task)
            for text, mode, task in pairs
        ]
        with self._lock:
            vectors = {
                job.key: cached[job.key[0]].vectors[job.key[1:]]
                for job in jobs
                if job.key[1:] in cached[job.key[0]].vectors
            }
        missing = [job for key, job in {job.key: job for job in jobs}.items() if key not in vectors]
        if missing:
            encoded = self._scheduler.run(missing)
            vectors |= zip((job.key for job in missing), encoded, strict=True)
            with self._lock:
                for job, vector in zip(missing, encoded, strict=True):
                    cached[job.key[0]].vectors.setdefault(job.key[1:], vector)
                for text in dict.fromkeys(job.key[0] for job in missing):
                    if self._texts.get(text) is cached[text]:
                        self._texts[text] = cached[text]  # stored again, because its size has changed
        return [vectors[job.key] for job in jobs]

    def encode_uncached(self, texts: Sequence[str], mode: str, task: str) -> Vectors:
        """Encode texts for one task, ``float32 [n, dim]``, without caching them."""
        return self.encoder.encode_pairs(self.encoder.tokenize(texts), [task] * len(texts), mode)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        """Identifier of the parameters that encode texts for a task, where no later release can change them."""
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
            with self._lock:
                for entry in new:
                    known = self._texts.get(entry.text)  # another thread may have been faster
                    if known is None:
                        self._texts[entry.text] = known = entry
                    found[entry.text] = known
        return [found[text] for text in texts]


def _encode_batch(encoder: QueryEncoder, jobs: list[_EncodingJob]) -> list[Vector]:
    """Vectors of the jobs of several callers, some of which may be equal."""
    unique = {job.key: job for job in jobs}
    vectors: dict[tuple[str, str, str], Vector] = {}
    for mode in dict.fromkeys(job.key[1] for job in jobs):
        batch = [job for job in unique.values() if job.key[1] == mode]
        encoded = encoder.encode_pairs([job.tokens for job in batch], [job.task for job in batch], mode)
        for job, vector in zip(batch, encoded, strict=True):
            vectors[job.key] = vector.copy()  # a view would keep the whole batch in memory
    return [vectors[job.key] for job in jobs]
