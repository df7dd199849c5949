"""What a phase of a run costs: wall time, and the most memory that was in use at once."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

__all__ = ["ResourceMeter"]

_MIB = 1024**2
_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class ResourceMeter:
    """Time and memory by phase, one number for every time that a phase was gone through.

    Attributes:
        seconds: wall time.
        peak_mib: most resident memory of the process while the phase ran, mapped files included. The kernel's
            high-water mark is reset before each phase; where it cannot be, it is that of the process so far.
        peak_device_mib: most memory that torch had allocated on the GPU; empty without one.
        memory: which of the two ``peak_mib`` is.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.peak_mib: dict[str, list[float]] = {}
        self.peak_device_mib: dict[str, list[float]] = {}
        self.memory = "VmHWM of each phase" if _reset() else "ru_maxrss of the process so far"
        self._device = device if device.type == "cuda" else None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what happens inside."""
        _reset()
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)
        began = time.perf_counter()
        yield
        if self._device is not None:
            torch.cuda.synchronize(self._device)
            peak = torch.cuda.max_memory_allocated(self._device) / _MIB
            self.peak_device_mib.setdefault(name, []).append(peak)
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        self.peak_mib.setdefault(name, []).append(_peak())


def _reset() -> bool:
    """Set the high-water mark of resident memory to what is resident now; whether that is possible here."""
    try:
        _RESET.write_text("5")
    except OSError:
        return False
    return True


def _peak() -> float:
    with suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
