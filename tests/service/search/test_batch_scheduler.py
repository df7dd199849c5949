"""What comes at the same time goes together, and nobody gets another's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Semaphore, Thread

import pytest

from service.core.errors import TooManyRequests
from service.search.batch_scheduler import Admission, BatchScheduler, CallCombiner, Unfinished


class _Doubling:
    """Waits in its first call until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.first, self.go = Event(), Event()

    def __call__(self, items: list[int]) -> Sequence[int]:
        self.calls.append(items)
        self.first.set()
        assert self.go.wait(10)
        if 13 in items:
            raise ValueError("thirteen")
        return [2 * item for item in items]


def _ask(gathered: CallCombiner[int, int], items: list[int]) -> tuple[Thread, list[list[int]]]:
    answers: list[list[int]] = []
    thread = Thread(target=lambda: answers.append(gathered(items)))
    thread.start()
    return thread, answers


def _until_waiting(gathered: CallCombiner[int, int], number: int) -> None:
    for _ in range(10_000):
        with gathered._turn:
            if len(gathered._waiting) == number:
                return
        Event().wait(0.001)
    raise AssertionError("they never came")


def test_who_waits_goes_together_in_the_next_call() -> None:
    run = _Doubling()
    gathered = CallCombiner(run, most=4)
    asked = [_ask(gathered, [1])]
    assert run.first.wait(10), "the first starts at once"
    for number, items in enumerate(([2], [3, 4], [5], [6, 7, 8, 9, 10, 11]), 1):
        asked.append(_ask(gathered, items))
        _until_waiting(gathered, number)
    run.go.set()
    for thread, _ in asked:
        thread.join(10)
    assert run.calls == [[1], [2, 3, 4, 5], [6, 7, 8, 9, 10, 11]], "up to the limit, but each whole"
    assert [answers for _, answers in asked] == [[[2]], [[4]], [[6, 8]], [[10]], [[12, 14, 16, 18, 20, 22]]]


def test_what_goes_wrong_is_told_to_those_whose_call_it_was_and_to_nobody_else() -> None:
    run = _Doubling()
    run.go.set()
    gathered = CallCombiner(run, most=4)
    with pytest.raises(ValueError, match="thirteen"):
        gathered([12, 13])
    assert gathered([14]) == [28]


def test_many_threads_each_get_their_own() -> None:
    run = _Doubling()
    run.go.set()
    gathered = CallCombiner(run, most=16)
    start = Barrier(12)

    def ask(number: int) -> bool:
        start.wait(10)
        return all(
            gathered([number * 1000 + n, n]) == [2 * (number * 1000 + n), 2 * n] for n in range(50) if n != 13
        )

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(ask, range(12)))
    assert sum(map(len, run.calls)) == 12 * 49 * 2


class _Halves:
    """Results, and an error for each odd item; None is wrong altogether."""

    def __init__(self, until: Event | None = None) -> None:
        self.calls: list[list[int]] = []
        self._until = until

    def __call__(self, items: list[int]) -> list[int | Exception]:
        self.calls.append(items)
        assert self._until is None or self._until.wait(10)
        if 0 in items:
            raise KeyError(0)
        return [ValueError(item) if item % 2 else item // 2 for item in items]


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_coroutines_of_a_turn_go_together_and_those_who_wait_in_the_next_call() -> None:
    go = Event()
    run = _Halves(go)

    async def main() -> list[object]:
        awaited = BatchScheduler(run, most=3)
        asked = [asyncio.create_task(awaited(item)) for item in (2, 3)]
        await _turns(3)
        asked += [asyncio.create_task(awaited(item)) for item in (4, 6, 8, 10)]
        await _turns(3)
        go.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    results = asyncio.run(main())
    assert run.calls == [[2, 3], [4, 6, 8], [10]]
    assert isinstance(results.pop(1), ValueError), "an error is told to whose it is"
    assert results == [1, 2, 3, 4, 5]


def test_what_is_asked_upon_an_answer_goes_with_those_who_waited() -> None:
    go = Event()
    run = _Halves(go)

    async def main() -> None:
        awaited = BatchScheduler(run, most=8)

        async def again() -> int:
            await awaited(2)
            await _turns(2)  # as long as it takes to write an answer and to read what comes upon it
            return await awaited(4)

        asked = [asyncio.create_task(again())]
        await _turns(3)
        asked.append(asyncio.create_task(awaited(6)))
        await _turns(3)
        go.set()
        await asyncio.gather(*asked)

    asyncio.run(main())
    assert run.calls == [[2], [6, 4]]


def test_as_many_calls_of_coroutines_run_at_a_time_as_there_are_lanes() -> None:
    both = Barrier(2)  # it is passed only by two at a time

    def run(items: list[int]) -> list[int | Exception]:
        both.wait(10)
        return [*items]

    async def main() -> list[int]:
        awaited = BatchScheduler(run, most=1, lanes=2)
        return await asyncio.gather(*(awaited(item) for item in range(6)))

    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 5]


def test_whoever_is_cancelled_leaves_and_the_others_do_not_notice() -> None:
    go = Event()
    run = _Halves(go)

    async def main() -> list[int]:
        awaited = BatchScheduler(run, most=8)
        first = [asyncio.create_task(awaited(item)) for item in (2, 4)]
        await _turns(3)
        then = [asyncio.create_task(awaited(item)) for item in (6, 8)]
        await _turns(3)
        first[0].cancel()
        then[0].cancel()
        go.set()
        results = [await first[1], await then[1]]
        for task in (first[0], then[0]):
            with pytest.raises(asyncio.CancelledError):
                await task
        return [*results, await awaited(10)]

    assert asyncio.run(main()) == [2, 4, 5]
    assert run.calls == [[2, 4], [8], [10]], "who left before its call is not asked for"


def test_one_event_loop_may_follow_another() -> None:
    run = _Halves()
    awaited = BatchScheduler(run, most=8)
    for item in (2, 4):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(awaited(item)) == item // 2
        loop.close()  # while its lane still rests


def test_a_call_that_fails_is_told_to_all_whose_it_was_and_the_lane_goes_on() -> None:
    run = _Halves()

    async def main() -> None:
        awaited = BatchScheduler(run, most=8)
        failed = await asyncio.gather(awaited(0), awaited(2), return_exceptions=True)
        assert [type(error) for error in failed] == [KeyError, KeyError]
        assert await awaited(2) == 1

    asyncio.run(main())


class _Down:
    """Takes names with a number, as ``slow 3``, one down in a step; at nothing they are finished.

    Attributes:
        steps: what was given to each.
        go: each step waits until one more may be taken.
    """

    def __init__(self, may: int = 0) -> None:
        self.steps: list[list[str]] = []
        self.begun, self.go = Semaphore(0), Semaphore(may)

    def __call__(self, items: list[str]) -> list[str | Exception | Unfinished[str]]:
        self.steps.append(items)
        self.begun.release()
        assert self.go.acquire(timeout=10)
        return [self._down(*item.split()) for item in items]

    def _down(self, name: str, left: str) -> str | Exception | Unfinished[str]:
        if name == "wrong":
            return ValueError(name)
        return Unfinished(f"{name} {int(left) - 1}") if int(left) > 1 else name


async def _within(step: _Down) -> None:
    """Until the next step has begun."""
    assert await asyncio.to_thread(step.begun.acquire, timeout=10)


def test_who_is_finished_is_answered_and_who_is_not_goes_on_beside_those_who_came_later() -> None:
    step, answered = _Down(), list[str]()

    async def main() -> None:
        awaited: BatchScheduler[str, str] = BatchScheduler(step, most=3)

        def ask(item: str) -> asyncio.Task[str]:
            asked = asyncio.create_task(awaited(item))
            asked.add_done_callback(lambda task: answered.append(task.result()))
            return asked

        asked = [ask("slow 4"), ask("quick 1")]
        await _within(step)
        asked += [ask("new 2"), ask("other 1"), ask("late 1")]
        await _turns(3)
        step.go.release()
        await asked[1]
        assert not asked[0].done()
        for _ in range(3):
            await _within(step)
            step.go.release()
        await asyncio.gather(*asked)

    asyncio.run(main())
    assert step.steps == [
        ["slow 4", "quick 1"],
        ["slow 3", "new 2", "other 1"],
        ["slow 2", "new 1", "late 1"],
        ["slow 1"],
    ]
    assert answered == ["quick", "other", "new", "late", "slow"]


def test_who_comes_while_none_is_finished_joins_in_the_next_step() -> None:
    step = _Down()

    async def main() -> list[str]:
        awaited: BatchScheduler[str, str] = BatchScheduler(step, most=8)
        asked = [asyncio.create_task(awaited("slow 4"))]
        await _within(step)
        step.go.release()  # nobody is there to join
        await _within(step)
        asked.append(asyncio.create_task(awaited("quick 1")))
        await _turns(3)
        for _ in range(3):
            step.go.release()
        return await asyncio.gather(*asked)

    assert asyncio.run(main()) == ["slow", "quick"]
    assert step.steps == [["slow 4"], ["slow 3"], ["slow 2", "quick 1"], ["slow 1"]]


def test_who_is_unfinished_does_not_notice_that_others_leave_or_go_wrong() -> None:
    step = _Down()

    async def main() -> None:
        awaited: BatchScheduler[str, str] = BatchScheduler(step, most=8)
        asked = [asyncio.create_task(awaited(item)) for item in ("slow 3", "wrong 1", "gone 3")]
        await _within(step)
        asked[2].cancel()
        step.go.release()
        with pytest.raises(ValueError, match="wrong"):
            await asked[1]
        await _within(step)
        step.go.release(2)
        assert await asked[0] == "slow"
        with pytest.raises(asyncio.CancelledError):
            await asked[2]

    asyncio.run(main())
    assert step.steps == [["slow 3", "wrong 1", "gone 3"], ["slow 2"], ["slow 1"]]


def test_there_is_room_for_so_many_and_for_one_of_any_size() -> None:
    admit = Admission(3)
    with admit(2), admit(1):
        with pytest.raises(TooManyRequests, match="3 searches are waiting") as refused, admit(1):
            pass
        assert refused.value.headers == {"Retry-After": "1"}
    with admit(100), pytest.raises(TooManyRequests), admit(1):
        pass
    with pytest.raises(KeyError), admit(3):
        raise KeyError
    with admit(3):
        pass
