"""Encode query texts, and cache their tokens and vectors; encoders of several backbones share a limit of memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy.typing as npt
import structlog
from cachetools import LRUCache

from index.arrays import Vectors
from index.errors import ShardStoreError
from index.files.manifest_format import task_of
from models.encoders.query_encoder import QueryEncoder, TokenizedText
from models.errors import ModelError
from service.core.errors import Unavailable

log = structlog.get_logger(__name__)

DEGRADED_RETRY_SECONDS = 30  # Retry-After when a shard or its encoder cannot be used
_CACHE_BYTES = 64 * 1024**2
_OBJECT_BYTES = 500  # overhead of the Python objects of an entry, roughly


class EncoderMemory:
    """Keeps query encoders within a limit: the least recently used one leaves, and returns on demand. Thread-safe.

    Args:
        max_bytes: Limit on the weights of their backbones; one encoder always stays.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used: WeakKeyDictionary[QueryVectorCache, float] = WeakKeyDictionary()  # time of the last use
        self._lock = Lock()

    def use(self, cache: QueryVectorCache, reopen: Callable[[], QueryEncoder]) -> QueryEncoder:
        """Get a cache's encoder, which is opened again if it has left; raise Unavailable."""
        with self._lock:
            self._used[cache] = time.monotonic()
            if (encoder := cache.opened) is None:
                self._make_room(cache)
                gc.collect()  # a backbone in torch refers to itself
                try:
                    encoder = cache.opened = reopen()
                # PyTorch raises either of the last two if a GPU is full.
                except (ModelError, ShardStoreError, OSError, MemoryError, RuntimeError) as error:
                    raise Unavailable(
                        f"An encoder can't be loaded: {error}", DEGRADED_RETRY_SECONDS
                    ) from error
                log.info("encoder_returned", backbone=encoder.backbone.name)
            self._make_room(cache)
            return encoder

    def _make_room(self, cache: QueryVectorCache) -> None:
        """Let encoders leave until the others and the given one, opened or not, are within the limit."""
        others = [used for used in self._used if used.opened and used is not cache]
        others.sort(key=self._used.__getitem__)
        while others and self._bytes(cache) > self._max_bytes:
            others.pop(0).opened = None

    def _bytes(self, cache: QueryVectorCache) -> int:
        weights: dict[str, int] = {}  # by fingerprint: encoders may share a backbone
        for used in self._used:
            if used.opened:
                used.weights = used.opened.backbone.fingerprint, used.opened.backbone.weight_bytes
            if used.opened or used is cache:
                weights.update([used.weights])
        return sum(weights.values())


class QueryVectorCache:
    """Encodes texts for tasks, and caches the most recently used tokens and vectors. Thread-safe.

    Cached vectors, and cached tokens, take about ``max_bytes`` each.

    Args:
        memory: Memory that the encoder shares with others, and a function that opens it again.

    Attributes:
        opened: The encoder; None if it has left the memory.
        weights: Fingerprint and bytes of the encoder's backbone, when the memory last saw it.
    """

    def __init__(
        self,
        encoder: QueryEncoder,
        max_bytes: int = _CACHE_BYTES,
        memory: tuple[EncoderMemory, Callable[[], QueryEncoder]] | None = None,
    ) -> None:
        def size_of(*arrays: npt.NDArray[Any]) -> int:
            return min(_OBJECT_BYTES + sum(array.nbytes for array in arrays), max_bytes)

        self.opened: QueryEncoder | None = encoder
        self.weights = "", 0
        self._memory = memory
        self.modes, self.profile_factor = encoder.modes, encoder.profile_factor
        self.shares_text_encoding, self._shared_modes = encoder.shares_text_encoding, encoder.shared_modes
        self._lock = Lock()
        self._tokens: LRUCache[str, TokenizedText] = LRUCache(max_bytes, lambda text: size_of(*text))
        # By text, query mode and task; the task is "" if tasks share a vector.
        self._vectors: LRUCache[tuple[str, str, str], Vectors] = LRUCache(max_bytes, getsizeof=size_of)
        self._identities: dict[tuple[str, str], str | None] = {}

    @property
    def encoder(self) -> QueryEncoder:
        """The query encoder, opened again if it has left the memory; raises Unavailable."""
        if self._memory is None:
            return cast(QueryEncoder, self.opened)
        memory, reopen = self._memory
        return memory.use(self, reopen)

    def tokens(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Tokenize each text. If tasks share an encoding, new texts are encoded, too."""
        with self._lock:
            tokens = {text: cached for text in texts if (cached := self._tokens.get(text)) is not None}
        missing = [text for text in dict.fromkeys(texts) if text not in tokens]
        if missing:
            encoder = self.encoder
            new = dict(zip(missing, encoder.tokenize(missing), strict=True))
            encoder.prepare_texts(list(new.values()))
            tokens |= new
            with self._lock:
                self._tokens.update(new)
        return [tokens[text] for text in texts]

    def __call__(self, pairs: Sequence[tuple[str, str, str]]) -> list[Vectors]:
        """Get the unit vector ``float32 [dim]`` of each (text, mode, task). One batch encodes those not cached."""
        shared = self._shared_modes
        keys = [(text, mode, "" if mode in shared else task_of(task)) for text, mode, task in pairs]
        with self._lock:
            vectors = {key: cached for key in keys if (cached := self._vectors.get(key)) is not None}
        missing = {
            key: task_of(task) for key, (_, _, task) in zip(keys, pairs, strict=True) if key not in vectors
        }
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
        encoder = self.encoder
        return encoder.encode_pairs(encoder.tokenize(texts), [task_of(task)] * len(texts), mode)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        """Identify the parameters that encode texts for a task; None if a later release can change them."""
        key = task, mode
        if key not in self._identities:  # hashes weights, and may read them first
            self._identities[key] = self.encoder.encoding_identity(task_of(task), mode)
        return self._identities[key]
