"""Request threads: few for short requests, and separate ones for long work, long searches and health checks.

Threads compete with the event loop for the interpreter lock: with twelve threads on two cores, a request takes 1.3
times as much processor time as with four. But unpacking an archive for a minute must not occupy a page's thread, and a
health check must be answered while all threads wait for an unresponsive catalog.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

SHORT_REQUEST_THREADS = min(40, max(8, 2 * (os.cpu_count() or 1)))
_LONG = CapacityLimiter(16)
_SEARCHES = CapacityLimiter(8)
_HEALTH = CapacityLimiter(2)

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


def limit_request_threads() -> None:
    """Limit the running event loop's threads for short requests."""
    to_thread.current_default_thread_limiter().total_tokens = SHORT_REQUEST_THREADS


def waiting_requests() -> int:
    """Count the short requests that wait for a thread."""
    return to_thread.current_default_thread_limiter().statistics().tasks_waiting


async def run_long(
    function: Callable[Parameters, Value], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Value:
    """Run a function that may take seconds or minutes, such as unpacking an archive, in a thread."""
    return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=_LONG)


async def run_search(
    function: Callable[Parameters, Value], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Value:
    """Run a search that may take seconds, such as a batch or a clip, in a thread that ingest does not occupy.

    An admitted search counts while it waits, so unbounded work would cause all others to be refused.
    """
    return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=_SEARCHES)


async def run_health_check(
    function: Callable[Parameters, Value], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Value:
    """Run a health check in a thread that no other request occupies."""
    return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=_HEALTH)
