"""Measure a device's memory and utilization while a check computes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean
from typing import Any

import torch

from benchmarks.learning.run_costs import ResourceMeter

_PHASE = "measured"
_SAMPLE_MILLISECONDS = 100


class DeviceMeter:
    """Measures a ``with`` block.

    Attributes:
        peak_gib: Peak memory that torch allocated on a GPU; on a CPU, the process's peak resident memory.
        utilization: Mean share of time in which a GPU ran a kernel, 0..1, as nvidia-smi reports it; None if not
            measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak_gib = 0.0
        self.utilization: float | None = None

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the body of the ``with`` block."""
        resources = ResourceMeter(self._device)
        synchronize(self._device)
        sampler = _start_sampler() if self._device.type == "cuda" else None
        try:
            with resources.phase(_PHASE):
                yield
        finally:
            self.utilization = _stop_sampler(sampler)
        (peak,) = (resources.peak_device_mib or resources.peak_mib)[_PHASE]
        self.peak_gib = peak / 1024

    def figures(self) -> dict[str, Any]:
        """Collect the peak memory, and the utilization if it was measured."""
        found: dict[str, Any] = {"peak_memory_gib": round(self.peak_gib, 2)}
        if self.utilization is not None:
            found["utilization"] = round(self.utilization, 3)
        return found


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _start_sampler() -> subprocess.Popen[str] | None:
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    index = torch.cuda.current_device()
    return subprocess.Popen(
        [*query, f"--id={index}", f"--loop-ms={_SAMPLE_MILLISECONDS}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _stop_sampler(sampler: subprocess.Popen[str] | None) -> float | None:
    if sampler is None:
        return None
    sampler.terminate()
    lines, _ = sampler.communicate()
    samples = [int(line) for line in lines.split() if line.isdigit()]
    return mean(samples) / 100 if samples else None
