"""The stop request of a worker process: its claims give their tasks back at the next step."""

from __future__ import annotations

import threading

__all__ = ["is_stopping", "request_stop", "reset"]

_stopping = threading.Event()


def request_stop() -> None:
    """Make every ``Claim.progress`` of this process raise ``WorkerStopping``. Safe in a signal handler."""
    _stopping.set()


def is_stopping() -> bool:
    """Return whether this process must stop."""
    return _stopping.is_set()


def reset() -> None:
    """Clear the request, for a process that starts another worker."""
    _stopping.clear()
