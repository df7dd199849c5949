"""Cached gradients: towers encode a batch in parts, and the loss is still that of the whole batch.

Within :func:`micro_batches`, the forward pass of each part keeps its input and its vectors only. The loss is computed
from the vectors of all parts. Its backward pass then computes each part again, and sends the gradient of the part's
vectors through it (Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021). Memory
grows with the part instead of the batch, at the cost of one more forward pass; gradients are equal up to rounding.
Each part draws its dropout and noise from the same state of the generator in both passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

_size: ContextVar[int | None] = ContextVar("micro_batch", default=None)


@contextmanager
def micro_batches(size: int | None) -> Iterator[None]:
    """Context in which towers encode at most ``size`` rows at once; None: all."""
    token = _size.set(size)
    try:
        yield
    finally:
        _size.reset(token)


def encode_in_parts(encode: Callable[..., tuple[Tensor, ...]], *batch: Tensor) -> tuple[Tensor, ...]:
    """Call a function that encodes each row alone, on all rows or in the parts of :func:`micro_batches`.

    Args:
        encode: Function of tensors ``[n, …]`` that returns tensors ``[n, …]``.
        batch: Arguments of the function, all with equally many rows.
    """
    size = _size.get()
    if size is None or size >= len(batch[0]):
        return encode(*batch)
    # Both passes run in this context: precision and gradient checkpointing are context variables, and the backward pass
    # runs after their contexts have ended, on a GPU in another thread.
    context = copy_context()

    def run(*rows: Tensor) -> Any:
        return context.run(encode, *rows)

    parts = []
    for rows in zip(*(torch.split(tensor, size) for tensor in batch), strict=True):
        parts.append(
            checkpoint(run, *rows, use_reentrant=False) if torch.is_grad_enabled() else encode(*rows)
        )
    return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
