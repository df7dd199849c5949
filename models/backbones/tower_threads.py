"""Threads that compute towers and scans together with the calling one. This module imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def core_count() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def map_in_threads(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Apply a function to each item, in the calling thread and up to ``threads`` − 1 others.

    All callers share these threads, and none waits for one that is busy with another call.
    """
    results: dict[int, Result] = {}
    remaining: Iterator[tuple[int, Item]] = iter(list(enumerate(items)))  # safe to share between threads

    def work() -> None:
        for index, item in remaining:
            results[index] = function(item)

    # The calling thread works too: it already has a core, while a woken thread may have to wait for one.
    others = [_pool(max(threads, core_count())).submit(work) for _ in range(min(threads, len(items)) - 1)]
    work()
    for other in others:
        # While other calls occupy the pool, a call may not have begun; the loop above has left it nothing to do.
        if not other.cancel():
            other.result()
    return [results[index] for index in range(len(items))]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="compute")
