"""Threads of searches: OpenMP threads within one search, and searches that run in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import faiss

Job = TypeVar("Job")
Result = TypeVar("Result")

_MIN_PARALLEL_BYTES = 2 * 1024**2  # smaller scans take less time than handing them to another thread
_REMOTE_SEARCHES = 32  # concurrent searches of a remote store, in one process

_threads: int | None = None


def set_search_threads(threads: int | None) -> None:
    """Set the number of OpenMP threads of one search, in this process; None: all cores."""
    global _threads
    _threads = threads


def use_one_thread_per_search() -> None:
    """Let concurrent requests run side by side, instead of each search on all cores. For servers."""
    set_search_threads(1)


class SearchThreadLimit:
    """Context manager that applies the limit of threads to the calling thread for the duration of one search.

    OpenMP counts threads for each calling thread, so that a limit set once at the start of the server would not reach
    the threads that serve requests. The limit is lifted afterwards because torch may share the OpenMP runtime. (A
    class: it is entered for every shard of every query, and a generator takes longer than all of its work.)
    """

    __slots__ = ("_previous",)

    def __enter__(self) -> None:
        self._previous = 0
        if _threads is not None:
            self._previous = faiss.omp_get_max_threads()
            faiss.omp_set_num_threads(_threads)

    def __exit__(self, *_: object) -> None:
        if self._previous:
            faiss.omp_set_num_threads(self._previous)


def search_in_parallel(
    search: Callable[[Job], Result], jobs: Sequence[Job], bytes_each: int, *, remote: bool = False
) -> list[Result]:
    """Run several searches, on all cores where each reads enough bytes to be worth a thread.

    Scans release the interpreter lock. All requests share one pool for local searches and one for remote searches.

    Args:
        search: Function that runs one job.
        jobs: Jobs to run, in the calling thread and others.
        bytes_each: Approximate number of bytes that one search reads.
        remote: Whether searches wait for a server; these always run in parallel.

    Returns:
        Results in the order of jobs.
    """
    threads = _REMOTE_SEARCHES if remote else len(os.sched_getaffinity(0))
    if threads < 2 or len(jobs) < 2 or (bytes_each < _MIN_PARALLEL_BYTES and not remote):
        return [search(job) for job in jobs]
    results: dict[int, Result] = {}
    remaining: Iterator[tuple[int, Job]] = iter(list(enumerate(jobs)))  # safe to share between threads

    def work() -> None:
        for place, job in remaining:
            results[place] = search(job)

    others = [_pool(threads).submit(work) for _ in range(min(threads, len(jobs)) - 1)]
    work()
    for other in others:
        # One that has not begun, because other searches occupy the pool, has nothing left to do.
        if not other.cancel():
            other.result()
    return [results[place] for place in range(len(jobs))]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="scan")
