"""Cached gradients: towers encode a batch in parts, yet the loss is that of the whole batch.

Within :func:`micro_batches`, each part's forward pass keeps only its input and its vectors. The loss is computed from
the vectors of all parts. Its backward pass then computes each part again, and propagates the gradient of the part's
vectors through it (Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021). Memory
grows with the part instead of the batch, at the cost of one more forward pass; gradients are equal up to rounding.
Dropout and noise of a part start from the same generator state in both passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import torch
from torch import Tensor

from models.backbones.tower_computation import recomputed

_size: ContextVar[int | None] = ContextVar("micro_batch", default=None)


@contextmanager
def micro_batches(size: int | None) -> Iterator[None]:
    """Let towers encode at most ``size`` rows at once within this context; None means all."""
    token = _size.set(size)
    try:
        yield
    finally:
        _size.reset(token)


def encode_in_parts(encode: Callable[..., tuple[Tensor, ...]], *batch: Tensor) -> tuple[Tensor, ...]:
    """Call a function that encodes rows independently, on all rows or part by part within :func:`micro_batches`.

    Args:
        encode: Function from tensors ``[n, …]`` to tensors ``[n, …]``.
        batch: Arguments of the function, all with the same number of rows.
    """
    size = _size.get()
    if size is None or size >= len(batch[0]):
        return encode(*batch)
    # Both passes run in this context: precision and gradient checkpointing are context variables, but the backward pass
    # runs after their contexts have ended and, on a GPU, in another thread.
    context = copy_context()

    def run(*rows: Tensor) -> Any:
        return context.run(encode, *rows)

    parts = []
    for rows in zip(*(torch.split(tensor, size) for tensor in batch), strict=True):
        parts.append(recomputed(run, *rows) if torch.is_grad_enabled() else encode(*rows))
    return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
