"""Measure a device's memory while a check computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from models.backbones.device_memory import peak_bytes, reset_peak


class DeviceMeter:
    """Measures a ``with`` block.

    Attributes:
        peak_gib: Peak memory that torch allocated on a GPU; on a CPU, the process's peak resident memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak_gib = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the body of the ``with`` block."""
        synchronize(self._device)
        reset_peak(self._device)
        yield
        synchronize(self._device)
        self.peak_gib = peak_bytes(self._device) / 1024**3


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
