"""Memory of the GPUs of this machine, read with ``nvidia-smi``.

A CUDA call would occupy several hundred megabytes on the device in each process that reports, and the process could
no longer fork children that use the device.
"""

from __future__ import annotations

import shutil
import subprocess

from cinestrata_schemas.operations import GpuMemory

_QUERY = ("--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits")
_TIMEOUT_SECONDS = 10
_MIB = 1024**2


def read_gpu_memory() -> list[GpuMemory]:
    """Return used and total memory by device; without a GPU or its driver, no entries."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(  # noqa: S603 (no part of the command is input)
            [program, *_QUERY],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # a driver without a device, or one that hangs
        return []
    return [memory for line in answer.stdout.splitlines() if (memory := _parse(line)) is not None]


def _parse(line: str) -> GpuMemory | None:
    """The entry of a line such as ``0, 1024, 81559`` in MiB; None for a device that reports no memory."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 3 or not all(field.isascii() and field.isdecimal() for field in fields):
        return None
    device, used, total = map(int, fields)
    return GpuMemory(device=device, used_bytes=used * _MIB, total_bytes=total * _MIB)
