"""Wall time and peak memory of the phases of a run."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

_MIB = 1024**2
_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class ResourceMeter:
    """Measures time and memory per phase; each value is a list with one number per execution of the phase.

    Args:
        device: Device of the backbone; on a GPU its memory is measured too.

    Attributes:
        seconds: Wall time.
        peak_mib: Peak resident memory of the process during the phase, including mapped files. The kernel's
            high-water mark is reset before each phase; where this is not possible, the value is the peak since the
            start of the process.
        peak_device_mib: Peak memory allocated by torch on the GPU; empty without one.
        memory: Description of the measure used for ``peak_mib``.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.peak_mib: dict[str, list[float]] = {}
        self.peak_device_mib: dict[str, list[float]] = {}
        self.memory = "VmHWM of each phase" if _reset() else "ru_maxrss of the process so far"
        self._device = device if device.type == "cuda" else None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the body of the ``with`` statement as one execution of a phase."""
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
    """Reset the high-water mark of resident memory; returns False where the kernel does not allow it."""
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
