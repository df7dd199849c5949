"""Measure what a run costs: wall time and peak memory by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainer.training_memory import peak_bytes, reset_peak

_MIB = 1024**2
_CPU = torch.device("cpu")


class ResourceMeter:
    """Measures time and memory per phase; each value is a list with one number per execution of the phase.

    Args:
        device: Device of the backbone; on a GPU, its memory is measured too.

    Attributes:
        peak_mib: The process's peak resident memory during the phase, including mapped files. The kernel's high-water
            mark is reset before each phase; where that is impossible, the value is the peak since the process started.
        peak_device_mib: Peak memory that torch allocated on the GPU; empty without one.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.peak_mib: dict[str, list[float]] = {}
        self.peak_device_mib: dict[str, list[float]] = {}
        self._device = device if device.type == "cuda" else None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the ``with`` block as one execution of a phase."""
        reset_peak(_CPU)
        if self._device is not None:
            reset_peak(self._device)
        began = time.perf_counter()
        yield
        if self._device is not None:
            torch.cuda.synchronize(self._device)
            self.peak_device_mib.setdefault(name, []).append(peak_bytes(self._device) / _MIB)
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        self.peak_mib.setdefault(name, []).append(peak_bytes(_CPU) / _MIB)

    def peak_gib(self, name: str) -> float:
        """Get the peak memory of the phase's last execution in GiB: of the GPU, if there is one."""
        return (self.peak_device_mib or self.peak_mib)[name][-1] / 1024
