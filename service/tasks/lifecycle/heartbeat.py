"""Keep a lease alive with a heartbeat, and pass a stop request to a worker's jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from service.core.errors import Unavailable
from service.core.settings import settings

STALL_SECONDS = 900.0  # a worker without progress for this long loses its lease

_stopping = threading.Event()

log = structlog.get_logger(__name__)


def request_stop() -> None:
    """Make every ``Claim.progress`` in this process raise ``WorkerStopping``. Safe in a signal handler."""
    _stopping.set()


def is_stopping() -> bool:
    """Check whether this process must stop."""
    return _stopping.is_set()


def clear_stop_request() -> None:
    """Clear the request, for a process that starts another worker."""
    _stopping.clear()


class Heartbeat:
    """Renews a lease three times within its duration, until the job finishes or the lease is lost.

    Args:
        renew: Renews the lease, and tells whether it is still held. May raise Unavailable.
        finished: Set when the job has ended.
    """

    def __init__(self, renew: Callable[[], bool], finished: threading.Event, name: str) -> None:
        self._renew = renew
        self._finished = finished
        self._name = name
        self._progress_count = 0
        self._thread: threading.Thread | None = None

    def count_progress(self) -> None:
        """Note that the job has advanced."""
        self._progress_count += 1

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, which ends once ``finished`` is set."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        last_count, last_change = self._progress_count, time.monotonic()
        while not self._finished.wait(settings().lease_seconds / 3):
            if self._progress_count != last_count:
                last_count, last_change = self._progress_count, time.monotonic()
            elif time.monotonic() - last_change > STALL_SECONDS:
                log.warning("lease_not_renewed", reason="The job makes no progress.", lease=self._name)
                continue
            try:
                if not self._renew():
                    return
            except Unavailable:
                log.warning("lease_not_renewed", reason="The catalog is unreachable.", lease=self._name)
