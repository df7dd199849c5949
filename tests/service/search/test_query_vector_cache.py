"""The cache of query vectors knows how much memory it takes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from service.search.snapshots.query_vector_cache import QueryVectorCache


class _Encoder:
    """Encodes each text as zeros.

    Args:
        width: Width of the vectors.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def is_task_independent(self, mode: str) -> bool:
        return False

    def tokenize(self, texts: Sequence[str]) -> list[Any]:
        return [np.arange(len(text.split()) + 2) for text in texts]

    def prepare_texts(self, tokens: Sequence[Any]) -> None:
        pass

    def encode_pairs(self, tokens: Sequence[Any], tasks: Sequence[str], mode: str) -> Any:
        return np.zeros((len(tokens), self.width), np.float32)


@pytest.mark.parametrize("width", [64, 512])
@pytest.mark.parametrize("tasks", [1, 6, 24])
def test_size_is_the_memory_that_the_texts_take(width: int, tasks: int) -> None:
    encoder: Any = _Encoder(width)
    names = [f"tsk_{number}" for number in range(tasks)]
    cache = QueryVectorCache(encoder)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(500):
            text = f"two dogs run along beach {number} of the day"
            cache([(text, "latest", name) for name in names])
        gc.collect()
        memory = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert cache.size_bytes == pytest.approx(memory, rel=0.15)
