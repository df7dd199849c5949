"""Batch concurrent work on an event loop and process it step by step."""

from __future__ import annotations

import math
import os
import time
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.core.errors import TooManyRequests

# Event loop turns between two steps of a lane: responses are written in the first, the same clients' next requests are
# read in the second and queued in the third. A turn begins with the callbacks from the previous one.
_TURNS_BETWEEN_STEPS = 4
_BLOCKING_THREADS = min(32, (os.cpu_count() or 1) + 4)  # like asyncio's default executor

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Unfinished(Generic[Item]):
    """The outcome for an item that needs another step.

    Attributes:
        item: The item's state for its next step.
    """

    item: Item


class BatchScheduler(Generic[Item, Result]):
    """Runs a step function over batches of items that arrive concurrently.

    A *step* takes a list of items and returns one outcome for each, in order: a result, an exception, or
    :class:`Unfinished` with the item's next state.

    Items on one event loop share steps on ``lanes`` threads. Waiting coroutines occupy no thread. Functions that may
    block on the catalog or the disk go to a second thread pool (:meth:`run_blocking`) and delay neither the event loop
    nor a lane.

    No item is delayed to fill a batch: batches grow because items queue up while a step runs.

    Args:
        step: Function that advances a batch by one step, outside the event loop's thread. If it raises, every item in
            the batch gets the exception.
        lanes: Maximum number of concurrent steps.
        max_wait: Maximum wait for an item's first step, in seconds. Items that waited longer are refused.
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
        # Used only in the event loop's thread, except for reading the queue length.
        self._lanes = lanes
        self._free_lanes = lanes
        self._loop: AbstractEventLoop | None = None
        # Items and the times after which they are refused; infinite after their first step.
        self._queue: deque[tuple[Item, Future[Result], float]] = deque()
        self._lane_threads = ThreadPoolExecutor(lanes, "search-lane")
        self._blocking_threads = ThreadPoolExecutor(_BLOCKING_THREADS, "search-blocking")

    @property
    def queue_length(self) -> int:
        """Number of submitted items waiting for a step."""
        return len(self._queue)

    async def submit(self, item: Item) -> Result:
        """Queue an item and wait for its result.

        Items that arrive while a lane is free start together at the end of the current event loop turn. Later items
        join a lane after its current step: finished items leave, unfinished items keep their places, and no item waits
        for another's last step. A lane pauses for a few turns after each step, so that the clients it answered can send
        their next requests: one large step costs less than two small ones.

        A cancelled item leaves before its next step without affecting others.

        Raises:
            TooManyRequests: The item waited longer than ``max_wait``.
            Exception: Whatever the step raised, or returned for the item.
        """
        loop = get_running_loop()
        if loop is not self._loop:  # the previous event loop has ended, along with its callbacks
            self._loop, self._free_lanes, self._queue = loop, self._lanes, deque()
        future: Future[Result] = loop.create_future()
        self._queue.append((item, future, time.monotonic() + self._max_wait))
        if len(self._queue) == 1:
            loop.call_soon(self._start_lanes, loop)
        return await future

    async def run_blocking(self, function: Callable[..., Value], *args: object) -> Value:
        """Run a function in the thread pool for blocking calls, with the caller's context variables.

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
        """Take items from the head of the queue, and refuse those that waited too long."""
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
            f"The server is busy: the search didn't start within {self._max_wait:g} seconds. Try again in a second."
        )

    def _run_lane(self, loop: AbstractEventLoop, batch: list[tuple[Item, Future[Result]]]) -> None:
        """Run steps in a lane's thread until an item finishes or another waits to join."""
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
        """Free a lane after some event loop turns, and put unfinished items back at the head of the queue."""
        if turns:
            loop.call_soon(self._release_lane, loop, turns - 1, unfinished)
        else:
            self._free_lanes += 1
            self._queue.extendleft((item, future, math.inf) for item, future in reversed(unfinished))
            self._start_lanes(loop)

    def _run_step(self, items: list[Item]) -> Sequence[Result | Exception | Unfinished[Item]]:
        try:
            return self._step(items)
        except Exception as error:  # raised to every caller of the batch
            return [error] * len(items)
