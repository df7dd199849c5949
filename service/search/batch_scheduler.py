"""Batching of concurrent work: stepwise batches on an event loop, and shared calls of threads."""

from __future__ import annotations

import math
import os
import time
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Condition
from typing import Generic, TypeVar

from service.core.errors import TooManyRequests

__all__ = ["BatchScheduler", "Unfinished"]

# Turns of the event loop between two steps of a lane. Responses are written in the first turn, the next requests of the
# same clients are read in the second and queued in the third; a turn begins with the callbacks of the turn before.
_TURNS_BETWEEN_STEPS = 4
_BLOCKING_THREADS = min(32, (os.cpu_count() or 1) + 4)  # as the default executor of asyncio

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Unfinished(Generic[Item]):
    """Outcome of an item that needs another step.

    Attributes:
        item: State of the item for its next step.
    """

    item: Item


@dataclass(eq=False)
class _ThreadCall(Generic[Item, Result]):
    items: Sequence[Item]
    outcomes: Sequence[Result | Exception | Unfinished[Item]] = ()
    is_done: bool = field(default=False)


class BatchScheduler(Generic[Item, Result]):
    """Runs a step function over batches of items that arrive concurrently.

    A *step* takes a list of items and returns one outcome for each, in order: a result, an exception, or
    :class:`Unfinished` with the item's next state.

    ===================  ==========================================================================================
    :meth:`submit`       For coroutines. Items of one event loop share steps on ``lanes`` threads. Waiting coroutines
                         occupy no thread.
    :meth:`run`          For threads. Concurrent calls share a step, which runs in the thread of one of the callers.
    :meth:`run_blocking` For coroutines that need a function which may wait for the catalog or the disk. It runs in a
                         second thread pool, so that it delays neither the event loop nor a lane.
    ===================  ==========================================================================================

    Neither entry delays an item to fill a batch: batches grow because items queue while a step runs.

    Args:
        step: Function that takes a batch one step further. It runs outside the event loop's thread. An exception that
            it raises becomes the outcome of every item of its batch.
        max_batch: Maximum number of items in a step. A single call of :meth:`run` may exceed it.
        lanes: Maximum number of concurrent steps of submitted items.
        max_wait: Maximum time in seconds that an item of a coroutine waits for its first step. Items that waited longer
            are refused.
    """

    def __init__(
        self,
        step: Callable[[list[Item]], Sequence[Result | Exception | Unfinished[Item]]],
        *,
        max_batch: int,
        lanes: int = 1,
        max_wait: float = math.inf,
    ) -> None:
        self._step = step
        self._max_batch = max_batch
        self._max_wait = max_wait
        # Items of coroutines; used only in the thread of the event loop, except for reading the length of the queue.
        self._lanes = lanes
        self._free_lanes = lanes
        self._loop: AbstractEventLoop | None = None
        # Items with the time after which they are refused; infinite after their first step.
        self._queue: deque[tuple[Item, Future[Result], float]] = deque()
        self._lane_threads = ThreadPoolExecutor(lanes, "search-lane")
        self._blocking_threads = ThreadPoolExecutor(_BLOCKING_THREADS, "search-blocking")
        # Calls of threads, guarded by the condition.
        self._calls: list[_ThreadCall[Item, Result]] = []
        self._call_finished = Condition()
        self._is_call_running = False

    @property
    def queue_length(self) -> int:
        """Number of submitted items and of calls of threads that wait for a step."""
        return len(self._queue) + len(self._calls)

    # -- coroutines ---------------------------------------------------------------------------------------------

    async def submit(self, item: Item) -> Result:
        """Queue an item and wait for its result.

        Items that arrive while a lane is free start together at the end of the current turn of the event loop. Later
        items join a lane after its current step: finished items leave, unfinished items keep their places, and no item
        waits for the last step of another. A lane pauses for a few turns after each step, until the next requests of
        the clients that it answered have been read, because one large step costs less than two small ones.

        A cancelled item leaves before its next step; other items are not affected.

        Raises:
            TooManyRequests: The item waited longer than ``max_wait``.
            Exception: The exception that the step returned for the item or raised.
        """
        loop = get_running_loop()
        if loop is not self._loop:  # the former event loop has ended, together with its callbacks
            self._loop, self._free_lanes, self._queue = loop, self._lanes, deque()
        future: Future[Result] = loop.create_future()
        self._queue.append((item, future, time.monotonic() + self._max_wait))
        if len(self._queue) == 1:
            loop.call_soon(self._start_lanes, loop)
        return await future

    async def run_blocking(self, function: Callable[..., Value], *args: object) -> Value:
        """Run a function in the pool of blocking threads, with the context variables of the caller.

        Raises:
            TooManyRequests: No thread was free within ``max_wait``.
        """
        latest = time.monotonic() + self._max_wait
        context = copy_context()

        def call() -> Value:
            if time.monotonic() > latest:
                raise self._late_error()
            return context.run(function, *args)

        return await get_running_loop().run_in_executor(self._blocking_threads, call)

    def _start_lanes(self, loop: AbstractEventLoop) -> None:
        """Fill free lanes from the head of the queue."""
        while self._free_lanes and self._queue:
            batch = self._take_batch()
            if batch:
                self._free_lanes -= 1
                self._lane_threads.submit(self._run_lane, loop, batch)

    def _take_batch(self) -> list[tuple[Item, Future[Result]]]:
        """Remove items from the head of the queue; those that waited too long are refused."""
        batch: list[tuple[Item, Future[Result]]] = []
        now = time.monotonic()
        while self._queue and len(batch) < self._max_batch:
            item, future, latest = self._queue.popleft()
            if future.done():  # its request was cancelled
                continue
            if now > latest:
                future.set_exception(self._late_error())
            else:
                batch.append((item, future))
        return batch

    def _late_error(self) -> TooManyRequests:
        return TooManyRequests(
            f"The server is busy: the search was not started within {self._max_wait:g} seconds. Try again in a second."
        )

    def _run_lane(self, loop: AbstractEventLoop, batch: list[tuple[Item, Future[Result]]]) -> None:
        """Run steps in a lane's thread until an item is finished or another item waits to join."""
        pending = [item for item, _ in batch]
        outcomes: Sequence[Result | Exception | Unfinished[Item]] = ()
        while len(pending) == len(batch):
            outcomes = self._run_step(pending)
            pending = [outcome.item for outcome in outcomes if isinstance(outcome, Unfinished)]
            if self._queue:
                break
        loop.call_soon_threadsafe(self._resolve, loop, [future for _, future in batch], outcomes)

    def _resolve(
        self,
        loop: AbstractEventLoop,
        futures: Sequence[Future[Result]],
        outcomes: Sequence[Result | Exception | Unfinished[Item]],
    ) -> None:
        unfinished: list[tuple[Item, Future[Result]]] = []
        for future, outcome in zip(futures, outcomes, strict=True):
            if future.done():  # its request was cancelled
                continue
            if isinstance(outcome, Unfinished):
                unfinished.append((outcome.item, future))
            elif isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        self._release_lane(loop, _TURNS_BETWEEN_STEPS, unfinished)

    def _release_lane(
        self, loop: AbstractEventLoop, turns: int, unfinished: list[tuple[Item, Future[Result]]]
    ) -> None:
        """Free a lane after a number of turns of the event loop; unfinished items return to the head of the queue."""
        if turns:
            loop.call_soon(self._release_lane, loop, turns - 1, unfinished)
        else:
            self._free_lanes += 1
            self._queue.extendleft((item, future, math.inf) for item, future in reversed(unfinished))
            self._start_lanes(loop)

    # -- threads ------------------------------------------------------------------------------------------------

    def run(self, items: Sequence[Item]) -> list[Result]:
        """Run the items of one thread to their results, in shared steps with concurrent callers.

        A caller that arrives while no call is running starts a step in its own thread. Later callers wait; one of them
        then takes all waiting calls, up to ``max_batch`` items, into the next step.

        Raises:
            Exception: The first exception that the step returned for one of the items or raised.
        """
        outcomes = list(self._run_shared_step(items))
        while pending := [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Unfinished)]:
            states = [outcome.item for outcome in outcomes if isinstance(outcome, Unfinished)]
            for number, outcome in zip(pending, self._run_shared_step(states), strict=True):
                outcomes[number] = outcome
        results: list[Result] = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            results.append(outcome)  # type: ignore[arg-type]  # no outcome is unfinished here
        return results

    def _run_shared_step(self, items: Sequence[Item]) -> Sequence[Result | Exception | Unfinished[Item]]:
        own: _ThreadCall[Item, Result] = _ThreadCall(items)
        with self._call_finished:
            self._calls.append(own)
        while True:
            with self._call_finished:
                self._call_finished.wait_for(lambda: own.is_done or not self._is_call_running)
                if own.is_done:
                    return own.outcomes
                calls = self._take_calls()
                self._is_call_running = True
            self._serve_calls(calls)

    def _take_calls(self) -> list[_ThreadCall[Item, Result]]:
        """Remove the longest waiting calls from the queue, up to ``max_batch`` items but at least one call."""
        size, count = 0, 0
        for call in self._calls:
            size += len(call.items)
            if count and size > self._max_batch:
                break
            count += 1
        calls, self._calls = self._calls[:count], self._calls[count:]
        return calls

    def _serve_calls(self, calls: list[_ThreadCall[Item, Result]]) -> None:
        outcomes: Sequence[Result | Exception | Unfinished[Item]] = ()
        try:
            outcomes = self._run_step([item for call in calls for item in call.items])
        finally:  # also where the thread is interrupted: other callers must not wait for it
            start = 0
            for call in calls:
                call.outcomes = outcomes[start : start + len(call.items)]
                start += len(call.items)
            with self._call_finished:
                for call in calls:
                    call.is_done = True
                self._is_call_running = False
                self._call_finished.notify_all()

    def _run_step(self, items: list[Item]) -> Sequence[Result | Exception | Unfinished[Item]]:
        try:
            return self._step(items)
        except Exception as error:  # raised to every caller of the batch
            return [error] * len(items)
