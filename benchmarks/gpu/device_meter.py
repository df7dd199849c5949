"""Measure a device's memory and utilization while a check computes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import mean
from threading import Event, Thread
from typing import Any

import torch

from benchmarks.learning.run_costs import ResourceMeter

_PHASE = "measured"
_SAMPLE_SECONDS = 0.1


class DeviceMeter:
    """Measures a ``with`` block.

    Attributes:
        peak_gib: Peak memory that torch allocated on a GPU; on a CPU, the process's peak resident memory.
        utilization: Mean share of time in which a GPU ran a kernel, 0..1, as its driver reports it; None if not
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
        sampler = None
        if self._device.type == "cuda":
            sampler = UtilizationSampler(str(torch.cuda.get_device_properties(self._device).uuid))
        try:
            with resources.phase(_PHASE):
                yield
        finally:
            self.utilization = sampler.end() if sampler else None
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


class _Rates(ctypes.Structure):
    """nvmlUtilization_t, in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class UtilizationSampler:
    """Samples the utilization of a GPU beside the measured code, with the library of its driver (NVML).

    Args:
        uuid: UUID of the GPU; its index differs between torch and the driver where only some GPUs are visible.
    """

    def __init__(self, uuid: str) -> None:
        self._samples: list[int] = []
        self._ended = Event()
        self._thread = Thread(target=self._sample, args=(f"GPU-{uuid}",), daemon=True)
        self._thread.start()

    def end(self) -> float | None:
        """Stop, and return the mean utilization, 0..1; None if the driver reports none, as for a part of a GPU."""
        self._ended.set()
        self._thread.join()
        return mean(self._samples) / 100 if self._samples else None

    def _sample(self, uuid: str) -> None:
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        device, rates = ctypes.c_void_p(), _Rates()
        if nvml.nvmlInit_v2():
            return
        if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) == 0:
            while not self._ended.wait(_SAMPLE_SECONDS):
                if nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates)) == 0:
                    self._samples.append(rates.gpu)
        nvml.nvmlShutdown()
