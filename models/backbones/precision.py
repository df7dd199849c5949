"""Where and how exactly towers compute.

Mixed precision: matrix products of the towers may run in bfloat16, in training, and for queries if settings say so.

Weights, gradients, losses and everything that is stored stay float32, and so do all vectors that are searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from models.errors import ModelError

__all__ = [
    "Precision",
    "compute_device",
    "forward_precision",
    "has_fast_bfloat16",
    "is_mixed_precision",
    "mixed_precision",
]

Precision = Literal["float32", "bfloat16"]

_mixed: ContextVar[bool] = ContextVar("mixed", default=False)


def compute_device(asked: str) -> torch.device:
    """Where towers compute: ``cpu``, ``cuda``, or ``auto``, which is a GPU if there is one.

    Raises:
        ModelError: another name, or a GPU is asked for, and there is none that torch can use.
    """
    if asked not in ("cpu", "cuda", "auto"):
        raise ModelError(f"there is no device {asked!r}: ask for cpu, cuda or auto")
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise ModelError(
            "a GPU is asked for (cuda), and torch finds none that it can use: ask for cpu or auto"
        )
    return torch.device("cuda" if there and asked != "cpu" else "cpu")


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@contextmanager
def mixed_precision(*, enabled: bool = True) -> Iterator[None]:
    """Within it, the towers' forward passes compute in bfloat16."""
    before = _mixed.set(enabled)
    try:
        yield
    finally:
        _mixed.reset(before)


def is_mixed_precision() -> bool:
    """Whether :func:`mixed_precision` is on."""
    return _mixed.get()


@contextmanager
def forward_precision(device: torch.device) -> Iterator[None]:
    """How a tower computes: as it stands, or as :func:`mixed_precision` says."""
    if not _mixed.get():
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        if device.type == "cpu":
            # For blocks that bring their own attention; ``models.backbones.attention`` says what is wrong with the fused one.
            with sdpa_kernel(SDPBackend.MATH):
                yield
        else:
            yield
