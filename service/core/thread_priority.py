"""Priority of background threads."""

from __future__ import annotations

import os
import sys
import threading

__all__ = ["lower_thread_priority"]

_LOWEST_PRIORITY = 19  # niceness


def lower_thread_priority() -> None:
    """Give this thread the lowest priority.

    Only Linux has priorities of threads; elsewhere the function does nothing.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
