"""Distribution of the towers' batches over processes that train together.

Within :func:`distributed_batches`, each process encodes a part of a batch, and all processes get the vectors of the
whole batch. Losses over these vectors, and all state that follows from them, are thus those of one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor


class BatchDistribution(Protocol):
    """Part of a batch that this process encodes."""

    def slice(self, batch: Tensor) -> Tensor:
        """Rows of a batch that this process encodes; every process gets equally many."""
        ...

    def gather(self, part: Tensor, count: int) -> Tensor:
        """The ``count`` rows of a batch from the parts of all processes, with gradients for the own part."""
        ...


_current: ContextVar[BatchDistribution | None] = ContextVar("batch_distribution", default=None)


@contextmanager
def distributed_batches(distribution: BatchDistribution | None) -> Iterator[None]:
    """Context in which the towers encode batches in parts; None leaves them whole."""
    token = _current.set(distribution)
    try:
        yield
    finally:
        _current.reset(token)


def slice_batch(batch: Tensor) -> Tensor:
    """Rows that this process encodes: all rows outside of :func:`distributed_batches`."""
    distribution = _current.get()
    return batch if distribution is None else distribution.slice(batch)


def gather_batch(part: Tensor, count: int) -> Tensor:
    """Rows of the whole batch of ``count`` rows, given those that this process encoded."""
    distribution = _current.get()
    return part if distribution is None else distribution.gather(part, count)
