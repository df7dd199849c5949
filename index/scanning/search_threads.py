"""OpenMP threads within one search."""

from __future__ import annotations

import faiss

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
