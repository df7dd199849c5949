"""A worker process that was asked to stop gives its tasks back at the next step."""

from __future__ import annotations

import threading

__all__ = ["is_stopping", "request_stop", "reset"]

_stopping = threading.Event()


def request_stop() -> None:
    """From now on every ``Claim.progress`` of this process raises ``WorkerStopping``. Safe in a signal handler."""
    _stopping.set()


def is_stopping() -> bool:
    """Whether this process was asked to stop."""
    return _stopping.is_set()


def reset() -> None:
    """Forget the request (a process that starts another worker)."""
    _stopping.clear()
