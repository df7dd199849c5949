"""Device and precision of the towers' computations.

With mixed precision, matrix products of the towers run in bfloat16: in training, and for queries if the settings say
so. Weights, gradients, losses, and all vectors that are stored or searched stay float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.errors import ModelError

_is_mixed: ContextVar[bool] = ContextVar("mixed_precision", default=False)


def compute_device(name: str) -> torch.device:
    """Device that towers compute on.

    Args:
        name: ``cpu``, ``cuda``, or ``auto`` for a GPU if one is available.

    Raises:
        ModelError: The name is unknown, or it is ``cuda`` and torch finds no usable GPU.
    """
    if name not in ("cpu", "cuda", "auto"):
        raise ModelError(f"device {name!r} is unknown: use cpu, cuda or auto")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ModelError("device 'cuda' needs a GPU, but torch finds no usable one: use cpu or auto")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@contextmanager
def mixed_precision(*, enabled: bool = True) -> Iterator[None]:
    """Context in which forward passes of the towers compute in bfloat16."""
    token = _is_mixed.set(enabled)
    try:
        yield
    finally:
        _is_mixed.reset(token)


def is_mixed_precision() -> bool:
    """Whether the current context is one of :func:`mixed_precision`."""
    return _is_mixed.get()


@contextmanager
def forward_precision(device: torch.device) -> Iterator[None]:
    """Context for the forward pass of a tower: autocast to bfloat16 under :func:`mixed_precision`, else unchanged."""
    if not _is_mixed.get():
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        if device.type == "cpu":
            # For blocks with their own attention; models.backbones.attention describes the cost of the fused kernel.
            with sdpa_kernel(SDPBackend.MATH):
                yield
        else:
            yield
