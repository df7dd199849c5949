"""Find the largest micro-batch that fits into memory, by measuring before training starts.

Before the first step, the loop computes loss and gradient for one pair, and measures memory. If that much for each
pair does not fit, it measures two pairs: memory grows linearly with their number, so this predicts the whole batch.
What does not depend on that number is added by size: gradients, AdamW's moments, and copies that the method keeps. If
the whole batch does not fit, the towers encode it in parts (:mod:`models.backbones.tower_computation`) that are as
large as possible.
"""

from __future__ import annotations

import ctypes
import resource
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.backbones.tower_computation import micro_batches
from models.errors import NotEnoughMemory

Loss = Callable[[Tensor, Sequence[str], Tensor | None], Tensor]


@dataclass(frozen=True)
class MemoryPlan:
    """How training will use memory."""

    micro_batch: int | None  # pairs that the towers encode at once; None: the whole batch
    needed: int  # estimated peak in bytes, beyond what the process already had
    usable: int  # bytes that it may allocate


def plan_memory(
    loss: Loss,
    frames: Tensor,
    texts: Sequence[str],
    references: Tensor | None,
    *,
    trained: Sequence[Tensor],
    has_moments: bool,
    later_bytes: int,
    processes: int = 1,
) -> MemoryPlan:
    """Choose the micro-batch for training.

    Existing gradients are lost; the state of random generators is restored.

    Args:
        frames: Videos of the first batch, or this process's part of them, on the method's device.
        texts: All captions of the first batch.
        trained: Parameters of the optimizer.
        has_moments: Whether the optimizer has allocated its moments.
        later_bytes: Bytes that the method will allocate later and keep.
        processes: Number of processes that share the batch and, on a CPU, the memory.

    Raises:
        NotEnoughMemory: Not even one pair at a time fits.
    """
    device = frames.device

    def usable() -> int:
        return usable_bytes(device) // (1 if device.type == "cuda" else processes)

    # Gradients and AdamW's two moments.
    fixed = sum(parameter.nbytes for parameter in trained) * (1 if has_moments else 3) + later_bytes
    count = -(-len(texts) // processes)

    def measure(pairs: int, size: int | None) -> int:
        # A process's part of the batch may have fewer videos.
        videos = frames[torch.arange(pairs, device=device).clamp(max=len(frames) - 1)]
        with micro_batches(size):
            return _peak_of_step(
                lambda: loss(videos, texts[:pairs], references), trained, device, usable() - fixed
            )

    def refuse(needed: int) -> NotEnoughMemory:
        return NotEnoughMemory(
            f"the training with batch_size {len(texts)} and {frames.shape[1]} frames per video, one video at a time,",
            needed,
            usable(),
            device.type,
            "Give the worker more memory (or add the domain again with checkpointing: true or a smaller batch_size in "
            "its settings)",
        )

    if fixed >= usable():
        raise refuse(fixed)
    more: int | None
    try:
        one = more = measure(1, None)  # another pair adds at most what the first one takes
        if count > 1 and fixed + count * one > usable():
            more = max(measure(2, None) - one, 0)
        needed = fixed + one + more * (count - 1)
        # Ask again, because the first step allocates buffers inside libraries.
        if needed <= (free := usable()):
            return MemoryPlan(None, needed, free)
    except (_Exceeded, torch.OutOfMemoryError):
        more = None
    try:
        first = measure(min(2, len(texts)), 1)
        per_pair = max(measure(3, 1) - first, 0) if len(texts) > 2 else 0
    except (_Exceeded, torch.OutOfMemoryError) as error:
        raise refuse(max(usable(), fixed + getattr(error, "live", 0))) from error
    base = fixed + first + per_pair * max(0, count - 2)
    free = usable()
    if base > free:
        raise refuse(base)
    # A part holds the graph of either videos or texts, so the growth with both is an upper bound.
    largest = 1 + (free - base) // more if more else 1
    parts = -(-count // min(largest, max(1, count - 1)))
    size = -(-count // parts)
    return MemoryPlan(size, base + (size - 1) * (more or 0), free)


class _Exceeded(Exception):
    """A measured step exceeds the limit."""

    def __init__(self, live: int) -> None:
        super().__init__(live)
        self.live = live


def _peak_of_step(
    loss: Callable[[], Tensor], trained: Sequence[Tensor], device: torch.device, limit: int
) -> int:
    """Measure the peak bytes of a forward and a backward pass without the gradients; raise torch.OutOfMemoryError on a
    GPU, or _Exceeded on a CPU beyond the limit, before the kernel would kill the process.
    """
    # Accumulating into existing gradients keeps the peak linear in the pairs. Otherwise the gradients at the end of the
    # backward pass would make the peak for few pairs, and the graph at its start for many.
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
                loss().backward()
                return torch.cuda.max_memory_allocated(device) - before
            with _LiveBytes(limit) as meter:
                loss().backward()
            return meter.peak
    finally:
        for parameter in trained:
            parameter.grad = None
        if device.type == "cpu":
            trim_heap()


class _LiveBytes(TorchDispatchMode):
    """Meter of the tensors that operations allocate on a CPU, whose allocator keeps no statistics."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._limit = limit
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, *(kwargs or {}).values()))}
        for storage in _storages((result,)):
            if storage._cdata not in given:
                self._add(storage)
        if self.live > self._limit:
            raise _Exceeded(self.live)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        weakref.finalize(storage, self._remove, key, size)
        self.live += size
        self.peak = max(self.peak, self.live)

    def _remove(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


def _storages(values: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of dense tensors on the CPU; an operation takes and returns tensors, or lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            if value.layout == torch.strided and value.device.type == "cpu":
                yield value.untyped_storage()
        elif isinstance(value, list | tuple):
            yield from _storages(value)


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
        allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total) - reserved
        return int(_USABLE * max(0, min(free, allowed) + reserved - torch.cuda.memory_allocated(device)))
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
    """Return free blocks of glibc's heap to the system, which counts them as used until then."""
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
                group_of_process = cgroups / line[3:].lstrip("/")
                for group in (group_of_process, *group_of_process.parents):
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
