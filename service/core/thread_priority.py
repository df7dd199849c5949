"""Work that may wait, in a thread beside those that answer requests."""

from __future__ import annotations

import os
import sys
import threading

__all__ = ["lower_thread_priority"]

_LEAST = 19  # the niceness of what runs when nobody else wants to


def lower_thread_priority() -> None:
    """Let the other threads of the machine run first. Linux weighs each thread by itself; elsewhere nothing happens."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST)
