"""Search several shards in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from models.backbones.tower_threads import core_count, map_in_threads

Job = TypeVar("Job")
Result = TypeVar("Result")

_MIN_PARALLEL_BYTES = 2 * 1024**2  # smaller scans take less time than handing them to another thread
_REMOTE_SEARCHES = 32  # concurrent searches of a remote store, in one process


def search_in_parallel(
    search: Callable[[Job], Result], jobs: Sequence[Job], bytes_each: int, *, remote: bool = False
) -> list[Result]:
    """Run jobs in parallel if each reads enough bytes to be worth a thread; scans release the interpreter lock.

    Args:
        search: Runs one job.
        jobs: Jobs, run in the calling thread and others.
        bytes_each: Bytes that one job reads, roughly.
        remote: Whether jobs wait for a server; these always run in parallel.

    Returns:
        Results in job order.
    """
    threads = _REMOTE_SEARCHES if remote else core_count()
    if threads < 2 or len(jobs) < 2 or (bytes_each < _MIN_PARALLEL_BYTES and not remote):
        return [search(job) for job in jobs]
    return map_in_threads(search, jobs, threads)
