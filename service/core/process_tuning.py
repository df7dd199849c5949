"""Lower the priority of background threads, and limit the memory that the C library keeps for each thread."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress

_LOWEST_PRIORITY = 19  # niceness
_M_ARENA_MAX = -8  # of mallopt(3)
_MAX_ARENAS = 2


def lower_thread_priority(increment: int = _LOWEST_PRIORITY) -> None:
    """Lower the priority of this thread and of the threads that it starts.

    Does nothing where threads have no priority (outside Linux) or a sandbox forbids the call.

    Args:
        increment: Niceness to add; the default gives the lowest priority.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + increment)


def share_memory_arenas() -> None:
    """Let all threads allocate from two arenas.

    By default, glibc gives threads arenas of their own, up to eight per core. A value that one thread caches in the
    place of another thread's then grows an arena without shrinking the other, and a process grows for hours before its
    caches are as large as they were meant to be. Call it before the process starts threads. ``MALLOC_ARENA_MAX`` has
    precedence, and other C libraries than glibc have no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, _MAX_ARENAS)
