"""How many OpenMP threads one search uses."""

from __future__ import annotations

import faiss

_threads: int | None = None


def set_search_threads(threads: int | None) -> None:
    """Set how many OpenMP threads one search uses in this process; None means all cores."""
    global _threads
    _threads = threads


def use_one_thread_per_search() -> None:
    """Let concurrent requests run side by side, instead of spreading each search over all cores. For servers."""
    set_search_threads(1)


class SearchThreadLimit:
    """Applies the thread limit to the calling thread during one search.

    OpenMP counts threads per calling thread, so a limit set once at the start of the server would not reach the threads
    that serve requests. The limit is lifted afterwards because torch may share the OpenMP runtime. This is a class
    because every shard of every query enters it, and a generator takes longer than all of its work.
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
