"""Memory on the device that runs the towers: how much is free, and how much this process took at most."""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_M_MMAP_THRESHOLD = -3  # malloc.h of glibc
_USABLE = 0.75  # share of the free memory that is given out; allocators lose some between blocks


def usable_bytes(device: torch.device, *, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Estimate how many bytes this process may still take on a device.

    On a GPU, this is what the driver reports as free plus what torch has cached. On a CPU, it is the least of the
    machine's available memory, what the process's control groups allow, and its limits; without any, there is no bound.

    Args:
        proc: Mount point of the process file system.
        cgroups: Mount point of the control groups, version 2.
    """
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device)
        free, total = torch.cuda.mem_get_info(device)
        own = int(torch.cuda.get_per_process_memory_fraction(device) * total) - reserved
        return int(_USABLE * max(0, min(free, own) + reserved - torch.cuda.memory_allocated(device)))
    return int(_USABLE * max(0, min([*_free_bytes(proc, cgroups), sys.maxsize])))


def reset_peak(device: torch.device) -> bool:
    """Start a new measurement of :func:`peak_bytes`; False if the kernel can only measure since the process began."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        (_PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes(device: torch.device) -> int:
    """Measure the peak since :func:`reset_peak`: torch's on a GPU, else the whole process's with its mapped files."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError, KeyError):
        return _sizes(_PROC / "self" / "status")["VmHWM"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def return_freed_memory() -> None:
    """Let glibc return each freed block of a mebibyte to the system, at the cost of new pages for the next one.

    By default, glibc keeps blocks of up to 32 MiB, yet can seldom reuse one for a tensor, whose alignment needs more
    room: the parts of a batch would take as much memory as the whole.
    """
    with suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1024**2)


def trim_heap() -> None:
    """Return the blocks that glibc holds for later to the system, which counts them as taken until then."""
    with suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)


def _free_bytes(proc: Path, cgroups: Path) -> Iterator[int]:
    with suppress(OSError, KeyError):
        yield _sizes(proc / "meminfo")["MemAvailable"]
    with suppress(OSError, KeyError):
        status = _sizes(proc / "self" / "status")
        for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
            maximum = resource.getrlimit(limit)[0]
            if maximum != resource.RLIM_INFINITY:
                yield maximum - status[used]
    with suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = cgroups / line[3:].lstrip("/")
                for group in (own, *own.parents):
                    if group.is_relative_to(cgroups):
                        yield from _free_in_group(group)


def _free_in_group(group: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, KeyError):
        limit = int((group / "memory.max").read_text())  # "max" without a limit
        used = int((group / "memory.current").read_text())
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        # The kernel can drop cached pages of files, so they do not count as used.
        yield limit - used + int(dict(lines)["inactive_file"])


def _sizes(file: Path) -> dict[str, int]:
    """Parse lines such as ``VmHWM:  10916 kB`` to bytes by name."""
    fields = (line.split() for line in file.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields if words[-1:] == ["kB"]}
