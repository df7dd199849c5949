"""How many threads a search takes, and several searches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import faiss

__all__ = ["search_in_parallel", "search_threads", "use_one_thread_per_search"]

Job = TypeVar("Job")
Found = TypeVar("Found")

_limit: int | None = None
_WORTH = (
    2 * 1024**2
)  # bytes to scan for each job; handing a smaller one to another thread takes longer than it saves
_WAITING = 32  # searches of a server at once, in one process


def use_one_thread_per_search() -> None:
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


def search_in_parallel(
    search: Callable[[Job], Found], jobs: Sequence[Job], bytes_each: int, *, remote: bool = False
) -> list[Found]:
    """The results of several searches, in their order: on all cores where each has enough to do.

    The scan itself holds no lock of the interpreter. There is one pool for those that read and one for those that wait,
    however many requests use them.

    Args:
        bytes_each: that a search reads, about.
        remote: whether they wait for a server, which takes longer than handing them over, however little they read.
    """
    threads = _WAITING if remote else len(os.sched_getaffinity(0))
    if threads < 2 or len(jobs) < 2 or (bytes_each < _WORTH and not remote):
        return [search(job) for job in jobs]
    # The caller does not only wait.
    others = [_pool(threads).submit(search, job) for job in jobs[1:]]
    return [search(jobs[0]), *(other.result() for other in others)]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="scan")
