"""How many threads a search takes."""

from __future__ import annotations

import faiss

__all__ = ["one_thread_per_search", "search_threads"]

_limit: int | None = None


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
