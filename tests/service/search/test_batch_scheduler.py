"""Batching of concurrent items."""

from __future__ import annotations

import asyncio
from threading import Barrier, Event, Semaphore, current_thread
from types import SimpleNamespace

import pytest

from service.core.errors import TooManyRequests
from service.search import batch_scheduler
from service.search.batch_scheduler import BatchScheduler, Unfinished


class _Halving:
    """Step that halves numbers, returns an exception for each odd one, and raises for a batch that contains 0."""

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


def test_items_of_one_turn_share_a_step_and_later_items_the_next() -> None:
    release = Event()
    step = _Halving(release)

    async def main() -> list[object]:
        scheduler = BatchScheduler(step, max_batch=3)
        pending = [asyncio.create_task(scheduler.submit(item)) for item in (2, 3)]
        await _pass_turns(3)
        pending += [asyncio.create_task(scheduler.submit(item)) for item in (4, 6, 8, 10)]
        await _pass_turns(3)
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
        pending.append(asyncio.create_task(scheduler.submit(6)))
        await _pass_turns(3)
        release.set()
        await asyncio.gather(*pending)

    asyncio.run(main())
    assert step.batches == [[2], [6, 4]]


def test_steps_run_concurrently_on_all_lanes() -> None:
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
        running = [asyncio.create_task(scheduler.submit(item)) for item in (2, 4)]
        await _pass_turns(3)
        queued = [asyncio.create_task(scheduler.submit(item)) for item in (6, 8)]
        await _pass_turns(3)
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


def test_failed_step_is_raised_for_all_of_its_items_and_frees_the_lane() -> None:
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
    assert name.startswith("search-blocking")
    assert name.endswith("!")


# -- steps --------------------------------------------------------------------------------------------------


class _Countdown:
    """Step for items such as ``slow 3``, whose number falls by one per step; items are finished at zero.

    Attributes:
        batches: Items of each step.
        started: Released once per started step.
        release: Each step waits until it can acquire this semaphore.
    """

    def __init__(self, steps: int = 0) -> None:
        self.batches: list[list[str]] = []
        self.started, self.release = Semaphore(0), Semaphore(steps)

    def __call__(self, items: list[str]) -> list[str | Exception | Unfinished[str]]:
        self.batches.append(items)
        self.started.release()
        assert self.release.acquire(timeout=10)
        return [self._count_down(*item.split()) for item in items]

    def _count_down(self, name: str, remaining: str) -> str | Exception | Unfinished[str]:
        if name == "wrong":
            return ValueError(name)
        return Unfinished(f"{name} {int(remaining) - 1}") if int(remaining) > 1 else name


async def _wait_for_step(step: _Countdown) -> None:
    assert await asyncio.to_thread(step.started.acquire, timeout=10)


def test_finished_items_leave_and_unfinished_items_continue_with_newcomers() -> None:
    step, finished = _Countdown(), list[str]()

    async def main() -> None:
        scheduler: BatchScheduler[str, str] = BatchScheduler(step, max_batch=3)

        def submit(item: str) -> asyncio.Task[str]:
            task = asyncio.create_task(scheduler.submit(item))
            task.add_done_callback(lambda task: finished.append(task.result()))
            return task

        pending = [submit("slow 4"), submit("quick 1")]
        await _wait_for_step(step)
        pending += [submit("new 2"), submit("other 1"), submit("late 1")]
        await _pass_turns(3)
        step.release.release()
        await pending[1]
        assert not pending[0].done()
        for _ in range(3):
            await _wait_for_step(step)
            step.release.release()
        await asyncio.gather(*pending)

    asyncio.run(main())
    assert step.batches == [
        ["slow 4", "quick 1"],
        ["slow 3", "new 2", "other 1"],
        ["slow 2", "new 1", "late 1"],
        ["slow 1"],
    ]
    assert finished == ["quick", "other", "new", "late", "slow"]


def test_item_joins_a_lane_between_two_steps_of_an_unfinished_item() -> None:
    step = _Countdown()

    async def main() -> list[str]:
        scheduler: BatchScheduler[str, str] = BatchScheduler(step, max_batch=8)
        pending = [asyncio.create_task(scheduler.submit("slow 4"))]
        await _wait_for_step(step)
        step.release.release()  # no item is waiting to join
        await _wait_for_step(step)
        pending.append(asyncio.create_task(scheduler.submit("quick 1")))
        await _pass_turns(3)
        for _ in range(3):
            step.release.release()
        return await asyncio.gather(*pending)

    assert asyncio.run(main()) == ["slow", "quick"]
    assert step.batches == [["slow 4"], ["slow 3"], ["slow 2", "quick 1"], ["slow 1"]]


def test_unfinished_items_are_not_affected_by_cancelled_and_failed_items() -> None:
    step = _Countdown()

    async def main() -> None:
        scheduler: BatchScheduler[str, str] = BatchScheduler(step, max_batch=8)
        pending = [
            asyncio.create_task(scheduler.submit(item)) for item in ("slow 3", "wrong 1", "cancelled 3")
        ]
        await _wait_for_step(step)
        pending[2].cancel()
        step.release.release()
        with pytest.raises(ValueError, match="wrong"):
            await pending[1]
        await _wait_for_step(step)
        step.release.release(2)
        assert await pending[0] == "slow"
        with pytest.raises(asyncio.CancelledError):
            await pending[2]

    asyncio.run(main())
    assert step.batches == [["slow 3", "wrong 1", "cancelled 3"], ["slow 2"], ["slow 1"]]


class _Clock:
    """Clock of the scheduler that a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(batch_scheduler, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_item_that_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, step = _Clock(monkeypatch), _Countdown()
    scheduler: BatchScheduler[str, str] = BatchScheduler(step, max_batch=8, max_wait=2)

    async def main() -> None:
        started = asyncio.create_task(scheduler.submit("started 2"))
        await _wait_for_step(step)
        late = asyncio.create_task(scheduler.submit("late 1"))
        await _pass_turns(1)
        clock.now = 3
        early = asyncio.create_task(scheduler.submit("early 1"))
        await _pass_turns(1)
        step.release.release()
        with pytest.raises(TooManyRequests, match="search didn't start within 2 seconds") as refused:
            await late
        assert refused.value.headers == {"Retry-After": "1"}
        step.release.release()
        assert await asyncio.gather(started, early) == ["started", "early"]

    asyncio.run(main())
    assert step.batches == [["started 2"], ["started 1", "early 1"]], "an unfinished item is never refused"


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
