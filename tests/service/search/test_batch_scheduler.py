"""Admission and batches of concurrent searches."""

from __future__ import annotations

import asyncio
from threading import Barrier, Event, current_thread, main_thread
from types import SimpleNamespace

import pytest

from service.core.errors import TooManyRequests
from service.search import engine
from service.search.engine import AdmissionControl, BatchScheduler


class _Halving:
    """Function that halves numbers, returns an exception for each odd one, and raises for a batch that contains 0."""

    def __init__(self, release: Event | None = None) -> None:
        self.batches: list[list[int]] = []
        self._release = release

    def __call__(self, items: list[int]) -> list[int | Exception]:
        self.batches.append(items)
        assert self._release is None or self._release.wait(10)
        if 0 in items:
            raise KeyError(0)
        return [ValueError(item) if item % 2 else item // 2 for item in items]


async def _pass_turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def _submit(scheduler: BatchScheduler[int, int], *items: int) -> list[asyncio.Task[int]]:
    """Submit items in one turn, and pass the turns in which a free lane starts them."""
    tasks = [asyncio.create_task(scheduler.submit(item)) for item in items]
    await _pass_turns(3)
    return tasks


def test_items_of_one_turn_share_a_batch_and_later_items_the_next() -> None:
    release = Event()
    step = _Halving(release)

    async def main() -> list[object]:
        scheduler = BatchScheduler(step, max_batch=3)
        pending = await _submit(scheduler, 2, 3) + await _submit(scheduler, 4, 6, 8, 10)
        release.set()
        return await asyncio.gather(*pending, return_exceptions=True)

    results = asyncio.run(main())
    assert step.batches == [[2, 3], [4, 6, 8], [10]]
    assert isinstance(results.pop(1), ValueError), "an exception is raised for its own item"
    assert results == [1, 2, 3, 4, 5]


def test_next_request_of_an_answered_client_joins_the_items_that_waited() -> None:
    release = Event()
    step = _Halving(release)

    async def main() -> None:
        scheduler = BatchScheduler(step, max_batch=8)

        async def send_two() -> int:
            await scheduler.submit(2)
            await _pass_turns(2)  # turns in which a response is written and the next request is read
            return await scheduler.submit(4)

        pending = [asyncio.create_task(send_two())]
        await _pass_turns(3)
        pending += await _submit(scheduler, 6)
        release.set()
        await asyncio.gather(*pending)

    asyncio.run(main())
    assert step.batches == [[2], [6, 4]]


def test_batches_run_concurrently_on_all_lanes() -> None:
    both_running = Barrier(2)

    def step(items: list[int]) -> list[int | Exception]:
        both_running.wait(10)
        return [*items]

    async def main() -> list[int]:
        scheduler = BatchScheduler(step, max_batch=1, lanes=2)
        return await asyncio.gather(*(scheduler.submit(item) for item in range(6)))

    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 5]


def test_cancelled_items_leave_without_affecting_others() -> None:
    release = Event()
    step = _Halving(release)

    async def main() -> list[int]:
        scheduler = BatchScheduler(step, max_batch=8)
        running, queued = await _submit(scheduler, 2, 4), await _submit(scheduler, 6, 8)
        running[0].cancel()
        queued[0].cancel()
        release.set()
        results = [await running[1], await queued[1]]
        for task in (running[0], queued[0]):
            with pytest.raises(asyncio.CancelledError):
                await task
        return [*results, await scheduler.submit(10)]

    assert asyncio.run(main()) == [2, 4, 5]
    assert step.batches == [[2, 4], [8], [10]], "an item cancelled in the queue is not run"


def test_scheduler_serves_a_second_event_loop() -> None:
    scheduler = BatchScheduler(_Halving(), max_batch=8)
    for item in (2, 4):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(scheduler.submit(item)) == item // 2
        loop.close()  # while the lane of the first loop is not yet released


def test_failed_batch_is_raised_for_all_of_its_items_and_frees_the_lane() -> None:
    async def main() -> None:
        scheduler = BatchScheduler(_Halving(), max_batch=8)
        failed = await asyncio.gather(scheduler.submit(0), scheduler.submit(2), return_exceptions=True)
        assert [type(error) for error in failed] == [KeyError, KeyError]
        assert await scheduler.submit(2) == 1

    asyncio.run(main())


def test_blocking_functions_run_outside_the_event_loop_and_the_lanes() -> None:
    async def main() -> str:
        scheduler = BatchScheduler(_Halving(), max_batch=8)
        return await scheduler.run_blocking(lambda suffix: current_thread().name + suffix, "!")

    name = asyncio.run(main())
    assert not name.startswith(("search-lane", main_thread().name))
    assert name.endswith("!")


class _Clock:
    """Clock of the scheduler that a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_item_that_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, release = _Clock(monkeypatch), Event()
    halving = _Halving(release)
    scheduler = BatchScheduler(halving, max_batch=8, max_wait=2)

    async def main() -> None:
        (started,) = await _submit(scheduler, 2)
        late = asyncio.create_task(scheduler.submit(4))
        await _pass_turns(1)
        clock.now = 3
        early = asyncio.create_task(scheduler.submit(6))
        await _pass_turns(1)
        release.set()
        with pytest.raises(TooManyRequests, match="search didn't start within 2 seconds") as refused:
            await late
        assert refused.value.headers == {"Retry-After": "1"}
        assert await asyncio.gather(started, early) == [1, 3], "an item that has started is completed"

    asyncio.run(main())
    assert halving.batches == [[2], [6]]


def test_function_that_waits_too_long_for_a_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch)
    scheduler = BatchScheduler(_Halving(), max_batch=8, max_wait=2)
    started, release = Event(), Event()

    def hold() -> bool:
        started.set()
        return release.wait(10)

    async def main() -> list[bool | BaseException]:
        calls = [asyncio.create_task(scheduler.run_blocking(hold)) for _ in range(100)]
        while not started.is_set():
            await asyncio.sleep(0)
        clock.now = 3
        release.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(main())
    assert True in outcomes, "a function that has started is completed"
    assert isinstance(outcomes[-1], TooManyRequests)


def test_the_number_of_searches_is_limited_but_a_single_request_of_any_size_is_admitted() -> None:
    admission = AdmissionControl(3)
    with admission.admit(2), admission.admit(1):
        with pytest.raises(TooManyRequests, match="3 searches are waiting") as refused, admission.admit(1):
            pass
        assert refused.value.headers == {"Retry-After": "1"}
        with pytest.raises(TooManyRequests, match="3 searches are waiting"):
            admission.check()
    with admission.admit(100), pytest.raises(TooManyRequests), admission.admit(1):
        pass
    with pytest.raises(KeyError), admission.admit(3):
        raise KeyError
    with admission.admit(3):
        pass
