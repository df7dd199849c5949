"""Parallel searches: order of results, use of threads, and exceptions."""

from __future__ import annotations

import os
import threading

import pytest

from service.search.snapshots.search_snapshot import search_in_parallel

LARGE, SMALL = 1024**3, 1024


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_results_are_in_order_of_jobs(size: int) -> None:
    assert search_in_parallel(lambda n: n * n, range(50), size) == [n * n for n in range(50)]
    assert search_in_parallel(lambda n: n, [], size) == []


def test_only_large_searches_use_other_threads() -> None:
    def where(_: int) -> int:
        return threading.get_ident()

    assert set(search_in_parallel(where, range(20), SMALL)) == {threading.get_ident()}
    cores = len(os.sched_getaffinity(0))
    met = threading.Barrier(cores)  # passes only if a search runs on each core
    assert search_in_parallel(lambda n: met.wait(timeout=5) * 0 + n, range(cores), LARGE) == [*range(cores)]


def test_small_remote_searches_run_in_parallel() -> None:
    met = threading.Barrier(5)  # passes only if all searches run at once

    def wait(number: int) -> int:
        met.wait(timeout=5)
        return number

    assert search_in_parallel(wait, range(5), 0, remote=True) == [0, 1, 2, 3, 4]


def test_search_does_not_wait_for_threads_that_others_use() -> None:
    cores = len(os.sched_getaffinity(0))
    is_over = threading.Event()
    waited: list[bool] = []

    def occupy() -> None:
        waited.extend(search_in_parallel(lambda _: is_over.wait(timeout=20), range(cores), LARGE))

    others = [threading.Thread(target=occupy) for _ in range(3)]  # more than the threads of the pool
    for other in others:
        other.start()
    assert search_in_parallel(lambda n: n, range(3), LARGE) == [0, 1, 2]
    is_over.set()
    for other in others:
        other.join()
    assert waited == [True] * 3 * cores


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_exception_of_one_search_is_raised(size: int) -> None:
    with pytest.raises(ZeroDivisionError):
        search_in_parallel(lambda n: 1 // n, [3, 0, 1], size)
