"""How many threads a search takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import faiss

__all__ = ["one_thread_per_search", "search_threads"]

_limit: int | None = None


def one_thread_per_search() -> None:
    """For a server: let requests run beside each other, instead of each search on all cores."""
    global _limit
    _limit = 1


@contextmanager
def search_threads() -> Iterator[None]:
    """Keep to the limit, in this thread and for as long as the search takes.

    OpenMP counts for each calling thread, so a limit that is set once, when the server starts, would not reach the
    threads that answer requests. It is lifted afterwards, because torch may share it.
    """
    if _limit is None:
        yield
        return
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(_limit)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
