"""Lower the priority of background threads."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

_LOWEST_PRIORITY = 19  # niceness


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
