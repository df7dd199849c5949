"""How many threads a search takes, and several searches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import faiss

__all__ = ["in_parallel", "one_thread_per_search", "search_threads"]

Job = TypeVar("Job")
Found = TypeVar("Found")

_limit: int | None = None
_WORTH = (
    2 * 1024**2
)  # bytes to scan for each job; handing a smaller one to another thread takes longer than it saves


def one_thread_per_search() -> None:
    """For a server: let requests run beside each other, instead of each search on all cores."""
    global _limit
    _limit = 1


class search_threads:  # noqa: N801 — a context manager, read like a function
    """Keep to the limit, in this thread and for as long as the search takes.

    OpenMP counts for each calling thread, so a limit that is set once, when the server starts, would not reach the
    threads that answer requests. It is lifted afterwards, because torch may share it. (A class, as it is entered for
    every shard of every query, and a generator takes longer than the whole of it.)
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = 0
        if _limit is not None:
            self._before = faiss.omp_get_max_threads()
            faiss.omp_set_num_threads(_limit)

    def __exit__(self, *_: object) -> None:
        if self._before:
            faiss.omp_set_num_threads(self._before)


def in_parallel(search: Callable[[Job], Found], jobs: Sequence[Job], bytes_each: int) -> list[Found]:
    """The results of several searches, in their order: on all cores where each has enough to do.

    The scan itself holds no lock of the interpreter. The pool is one for the process, however many requests use it.

    Args:
        bytes_each: that a search reads, about.
    """
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or len(jobs) < 2 or bytes_each < _WORTH:
        return [search(job) for job in jobs]
    # The caller does not only wait.
    others = [_pool(cores).submit(search, job) for job in jobs[1:]]
    return [search(jobs[0]), *(other.result() for other in others)]


@cache
def _pool(cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="scan")
