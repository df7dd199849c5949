"""Limits on the number of long-lived responses that a process sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from service.core.errors import TooManyRequests

_RETRY_SECONDS = 30


class StreamLimit:
    """Counts a process's open streams by caller. Thread-safe.

    Args:
        kind: Name of the streams, for errors.
        advice: What a client may do instead.
        most_of_caller: Maximum number of streams per key or user, so that others have streams left.
    """

    def __init__(self, kind: str, advice: str, *, most: int, most_of_caller: int) -> None:
        self.most, self.most_of_caller = most, most_of_caller
        self._kind, self._advice = kind, advice
        self._open: Counter[str] = Counter()
        self._lock = Lock()

    def require(self, caller: str) -> None:
        """Check that a caller may open another stream.

        Raises:
            TooManyRequests: The caller, or all callers together, have the maximum number of streams.
        """
        with self._lock:
            own, total = self._open[caller], self._open.total()
        if own >= self.most_of_caller:
            raise TooManyRequests(
                f"{self.most_of_caller} {self._kind} of this key or user are open; {self._advice}.",
                _RETRY_SECONDS,
            )
        if total >= self.most:
            raise TooManyRequests(f"{self.most} {self._kind} are open; {self._advice}.", _RETRY_SECONDS)

    @contextmanager
    def opened(self, caller: str) -> Iterator[None]:
        """Count a stream of the caller until the ``with`` statement ends."""
        with self._lock:
            self._open[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[caller] -= 1
                self._open += Counter()  # forgets callers without a stream
