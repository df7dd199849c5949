"""Gradient checkpointing: a block keeps its input alone, and computes everything else once more in the backward pass.

Memory of the towers then grows with the width of a block's input instead of with all that happens inside it, at the
price of one more forward pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
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

__all__ = ["gradient_checkpointing", "run_checkpointed"]

_enabled: ContextVar[bool] = ContextVar("gradient_checkpointing", default=False)


@contextmanager
def gradient_checkpointing(*, enabled: bool = True) -> Iterator[None]:
    """Within it, blocks that run through :func:`run_checkpointed` keep their input alone."""
    before = _enabled.set(enabled)
    try:
        yield
    finally:
        _enabled.reset(before)


def run_checkpointed(block: Callable[..., Tensor], *inputs: Any, device: torch.device) -> Tensor:
    """``block(*inputs)``; its gradients are the same either way, dropout and precision included."""
    if not (_enabled.get() and torch.is_grad_enabled()):
        return block(*inputs)
    mixed = is_mixed_precision()

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _again(device, mixed=mixed)

    result: Tensor = checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)
    return result


@contextmanager
def _again(device: torch.device, *, mixed: bool) -> Iterator[None]:
    """The precision of the first pass; by the time of the backward pass, its own context is over."""
    with mixed_precision(enabled=mixed), forward_precision(device):
        yield
