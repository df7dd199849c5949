"""Request threads: few for short requests, and separate ones for long work, long searches and health checks.

Threads compete with the event loop for the interpreter lock: with twelve threads on two cores, a request takes 1.3
times as much processor time as with four. But unpacking an archive for a minute must not occupy a page's thread, and a
health check must be answered while all threads wait for an unresponsive catalog.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

from service.core.errors import TooManyRequests

SHORT_REQUEST_THREADS = min(40, max(8, 2 * (os.cpu_count() or 1)))

_P = ParamSpec("_P")
_T = TypeVar("_T")


def limit_request_threads() -> None:
    """Limit the running event loop's threads for short requests."""
    to_thread.current_default_thread_limiter().total_tokens = SHORT_REQUEST_THREADS


class SeparateThreads:
    """Runs functions in a number of threads that other requests do not occupy."""

    def __init__(self, threads: int) -> None:
        self._limiter = CapacityLimiter(threads)

    async def __call__(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function, once one of the threads is free."""
        return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=self._limiter)


run_long = SeparateThreads(16)  # seconds or minutes, such as unpacking an archive
# Searches of seconds, such as a batch or a clip. Searches that wait for a thread count as admitted, so if they shared
# threads with ingest, whose work is unbounded, others would be refused.
run_search = SeparateThreads(8)
run_health_check = SeparateThreads(2)


_RETRY_SECONDS = 30


class StreamLimit:
    """Limits a process's open streams, in all and by caller (a key or user)."""

    def __init__(self, kind: str, advice: str, *, most: int, most_of_caller: int) -> None:
        self.most, self.most_of_caller = most, most_of_caller
        self._kind, self._advice = kind, advice
        self._open: Counter[str] = Counter()
        self._lock = Lock()

    def require(self, caller: str) -> None:
        """Check that a caller may open another stream; raises TooManyRequests."""
        with self._lock:
            of_caller, total = self._open[caller], self._open.total()
        if of_caller >= self.most_of_caller:
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
