"""How a process shares its time among searches: admission, batches, and how many searches it ran recently."""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import AbstractEventLoop, Future, Task, get_running_loop
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from cinestrata_schemas.operations import SearchLoad
from service.core.errors import TooManyRequests
from service.library.prometheus_metrics import SEARCH_SECONDS

# Event loop turns between two batches of a lane: responses are written in the first, the same clients' next requests
# are read in the second and queued in the third. A turn begins with the callbacks from the previous one.
_TURNS_BETWEEN_BATCHES = 4
_WINDOW_SECONDS, _SAMPLE_SECONDS = 300.0, 5.0  # of search rates

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")


class AdmissionControl:
    """Admits concurrent searches up to a number; a request that comes alone always, whatever its size. Thread-safe."""

    def __init__(self, max_admitted: int) -> None:
        self._max_admitted = max_admitted
        self._lock = Lock()
        self._admitted = 0

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Hold a place for a request with ``count`` searches during the ``with`` block.

        Raises:
            TooManyRequests: Too many searches are waiting or running.
        """
        with self._lock:
            self.check(count)
            self._admitted += count
        try:
            yield
        finally:
            with self._lock:
                self._admitted -= count

    def check(self, count: int = 1) -> None:
        """Check whether a request would be admitted now; raises TooManyRequests as :meth:`admit`."""
        if self._admitted and self._admitted + count > self._max_admitted:
            raise TooManyRequests(
                f"The server is busy: {self._admitted} searches are waiting or running, this request "
                f"adds {count}, and the limit is {self._max_admitted}. Try again in a second."
            )


class BatchScheduler(Generic[Item, Result]):
    """Runs a function over batches of items that arrive concurrently on one event loop, on ``lanes`` threads.

    No item is delayed to fill a batch: batches grow because items queue up while others run. Waiting coroutines occupy
    no thread.

    Args:
        run: Function that returns the result or the exception of each item in a batch, in order. If it raises, every
            item gets the exception.
        max_wait: Maximum wait in seconds. Items that waited longer are refused.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Sequence[Result | Exception]],
        *,
        max_batch: int,
        lanes: int = 1,
        max_wait: float = math.inf,
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self._max_wait = max_wait
        # Used only in the event loop's thread, except for reading the queue length.
        self._lanes = lanes
        self._free_lanes = lanes
        self._running: set[Task[None]] = set()
        self._loop: AbstractEventLoop | None = None
        self._queue: deque[tuple[Item, Future[Result], float]] = deque()  # with the times of refusal
        self._threads = ThreadPoolExecutor(lanes, "search-lane")

    @property
    def queue_length(self) -> int:
        """Number of submitted items that wait."""
        return len(self._queue)

    async def submit(self, item: Item) -> Result:
        """Queue an item and wait for its result.

        Items that arrive while a lane is free start together at the end of the current event loop turn. A lane pauses
        for a few turns after each batch, so that the clients it answered can send their next requests: one large batch
        costs less than two small ones. An item that is cancelled while it waits does not run.

        Raises:
            TooManyRequests: The item waited longer than ``max_wait``.
            Exception: Whatever the function raised, or returned for the item.
        """
        loop = get_running_loop()
        if loop is not self._loop:  # the previous event loop has ended, along with its lanes
            self._loop, self._free_lanes, self._queue = loop, self._lanes, deque()
        future: Future[Result] = loop.create_future()
        self._queue.append((item, future, time.monotonic() + self._max_wait))
        if len(self._queue) == 1:  # else, a lane that is busy or about to start takes the item
            self._start_lane()
        return await future

    async def run_blocking(self, function: Callable[..., Value], *args: object) -> Value:
        """Run a function that may block on the catalog or the disk in a thread besides the lanes.

        Raises TooManyRequests if no thread was free within ``max_wait``.
        """
        latest = time.monotonic() + self._max_wait

        def call() -> Value:
            if time.monotonic() > latest:
                raise self._late_error()
            return function(*args)

        return await asyncio.to_thread(call)

    def _late_error(self) -> TooManyRequests:
        return TooManyRequests(
            f"The server is busy: the search didn't start within {self._max_wait:g} seconds. Try again in a second."
        )

    def _start_lane(self) -> None:
        """Start a free lane, if there is one, in the next event loop turn."""
        if self._free_lanes:
            self._free_lanes -= 1
            lane = get_running_loop().create_task(self._run_lane())
            self._running.add(lane)  # the event loop holds only a weak reference
            lane.add_done_callback(self._running.discard)

    async def _run_lane(self) -> None:
        """Run batches from the head of the queue until it is empty."""
        while self._queue:
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
            if not batch:
                break
            if self._queue:
                self._start_lane()
            outcomes: Sequence[Result | Exception]
            try:
                items = [item for item, _ in batch]
                outcomes = await get_running_loop().run_in_executor(self._threads, self._run, items)
            except Exception as error:  # raised to every caller of the batch
                outcomes = [error] * len(batch)
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if future.done():  # its request was cancelled
                    continue
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            for _ in range(_TURNS_BETWEEN_BATCHES):
                await asyncio.sleep(0)
        self._free_lanes += 1


class SearchRate:
    """How many searches this process ran in five minutes and how long they took. Thread-safe.

    Searches pay nothing for it: a background thread samples their Prometheus histogram every few seconds.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[float, float]]] = deque()
        self._lock = Lock()
        self._is_stopped = Event()
        self.sample()

    def start(self) -> None:
        """Sample in a background thread until :meth:`close`."""
        self._is_stopped.clear()
        Thread(target=self._run, name="search-rate", daemon=True).start()

    def close(self) -> None:
        """Stop the thread."""
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.wait(_SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        """Add a sample and drop those older than the window."""
        at = time.monotonic()
        with self._lock:
            self._samples.append((at, _cumulative_counts()))
            while at - self._samples[0][0] > _WINDOW_SECONDS:
                self._samples.popleft()

    def read(self) -> SearchLoad:
        """Compute the load since the oldest sample."""
        with self._lock:
            started, before = self._samples[0]
        seconds = max(time.monotonic() - started, 1e-3)
        counts = {bound: count - before.get(bound, 0.0) for bound, count in _cumulative_counts().items()}
        searches = int(max(counts.values(), default=0))
        return SearchLoad(
            seconds=round(seconds, 1),
            searches=searches,
            per_minute=round(60 * searches / seconds, 1),
            p95_seconds=_percentile(counts, 0.95) if searches else None,
        )


def _cumulative_counts() -> dict[float, float]:
    """Read the cumulative number of searches by each bucket's upper bound in seconds."""
    return {
        float(sample.labels["le"]): sample.value
        for metric in SEARCH_SECONDS.collect()
        for sample in metric.samples
        if sample.name.endswith("_bucket") and sample.labels["stage"] == "total"
    }


def _percentile(counts: Mapping[float, float], share: float) -> float:
    """Interpolate a percentile linearly within its bucket, like Prometheus's ``histogram_quantile``."""
    wanted = share * max(counts.values())
    lower, below = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= wanted:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * (wanted - below) / (count - below or 1)
        lower, below = bound, count
    return lower
