"""Gradient checkpointing: a block stores only its input and recomputes everything else in the backward pass.

The memory of the towers then grows with the width of a block's input instead of with all its activations, at the cost
of one more forward pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from models.backbones.precision import forward_precision, is_mixed_precision, mixed_precision

_is_enabled: ContextVar[bool] = ContextVar("gradient_checkpointing", default=False)


@contextmanager
def gradient_checkpointing(*, enabled: bool = True) -> Iterator[None]:
    """Context in which blocks run by :func:`run_checkpointed` store only their input."""
    token = _is_enabled.set(enabled)
    try:
        yield
    finally:
        _is_enabled.reset(token)


def run_checkpointed(block: Callable[..., Tensor], *inputs: Any, device: torch.device) -> Tensor:
    """Run ``block(*inputs)``. Gradients do not depend on checkpointing, dropout and precision included.

    Args:
        block: Function to run.
        inputs: Arguments of the function.
        device: Device that the block computes on.
    """
    if not (_is_enabled.get() and torch.is_grad_enabled()):
        return block(*inputs)
    is_mixed = is_mixed_precision()

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _recomputation_precision(device, is_mixed=is_mixed)

    result: Tensor = checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)
    return result


@contextmanager
def _recomputation_precision(device: torch.device, *, is_mixed: bool) -> Iterator[None]:
    """Precision of the first pass, whose own context has ended by the time of the backward pass."""
    with mixed_precision(enabled=is_mixed), forward_precision(device):
        yield
