"""Requests that come at the same time: what they have encoded goes together, and beyond a number they are refused."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock
from typing import Generic, TypeVar

from service.core.errors import TooManyRequests

__all__ = ["Admission", "BatchScheduler", "CallCombiner", "Unfinished"]

# Of the event loop: answers are written in one, what their clients ask next is read in another, and waits in the next;
# the last one because a turn begins with what the turn before it has put off.
_TURNS = 4

Item = TypeVar("Item")
Result = TypeVar("Result")


class Admission:
    """Lets in as many texts as can be answered in good time, and refuses those beyond.

    Args:
        most: texts that are waited for or being answered. One request alone is let in whatever its size.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0
        self._lock = Lock()

    @contextmanager
    def __call__(self, texts: int) -> Iterator[None]:
        """For as long as a request with so many texts takes.

        Raises:
            TooManyRequests: there is no room for it.
        """
        with self._lock:
            if self._inside and self._inside + texts > self._most:
                raise TooManyRequests(
                    f"{self._inside} searches are waiting or being answered, this request brings {texts}, and there is "
                    f"room for {self._most}. Try again in a second."
                )
            self._inside += texts
        try:
            yield
        finally:
            with self._lock:
                self._inside -= texts


@dataclass
class _Call(Generic[Item, Result]):
    items: Sequence[Item]
    results: list[Result] = field(default_factory=list)
    error: Exception | None = None
    done: bool = False


class CallCombiner(Generic[Item, Result]):
    """Calls one function for many callers at once. Safe to be shared by threads.

    Whoever comes while no call runs starts at once. Whoever comes later waits, and one of those who wait takes all of
    them along in the next call: so batches grow with the load, and nothing is ever delayed for their sake.

    Args:
        run: from items to as many results, in their order.
        most: items of one call, unless a single caller has more.
    """

    def __init__(self, run: Callable[[list[Item]], Sequence[Result]], most: int) -> None:
        self._run = run
        self._most = most
        self._waiting: list[_Call[Item, Result]] = []
        self._busy = False
        self._turn = Condition()

    def __call__(self, items: Sequence[Item]) -> list[Result]:
        """The results of one caller's items. What ``run`` raises is raised to all whose items it was given."""
        mine: _Call[Item, Result] = _Call(items)
        with self._turn:
            self._waiting.append(mine)
        while True:
            with self._turn:
                self._turn.wait_for(lambda: mine.done or not self._busy)
                if mine.done:
                    break
                together = self._next()
                self._busy = True
            self._serve(together)
        if mine.error is not None:
            raise mine.error
        return mine.results

    def _next(self) -> list[_Call[Item, Result]]:
        """Those who wait, the first ones first, up to the limit."""
        size, number = 0, 0
        for call in self._waiting:
            size += len(call.items)
            if number and size > self._most:
                break
            number += 1
        together, self._waiting = self._waiting[:number], self._waiting[number:]
        return together

    def _serve(self, together: list[_Call[Item, Result]]) -> None:
        error: Exception | None = None
        results: Sequence[Result] = ()
        try:
            results = self._run([item for call in together for item in call.items])
        except Exception as raised:  # to be raised where it was waited for
            error = raised
        finally:
            start = 0
            for call in together:
                call.results = list(results[start : start + len(call.items)])
                start += len(call.items)
                call.error = error
            with self._turn:
                for call in together:
                    call.done = True
                self._busy = False
                self._turn.notify_all()


@dataclass(frozen=True)
class Unfinished(Generic[Item]):
    """In place of a result: what an item is after a step that was not its last."""

    item: Item


class BatchScheduler(Generic[Item, Result]):
    """Answers coroutines of an event loop, several in each step: who waits holds no thread, and none is woken in vain.

    Whoever comes while there is a free lane starts with all that this turn of the event loop brings. Whoever comes
    later joins those of a lane after their step: who is finished is answered and leaves, the others go on beside the
    newcomers, and nobody waits for another's last step. A lane that has answered goes on some turns later, when the
    next requests of those whom it answered have been read: the interpreter would do that work sooner or later, and
    steps of many items cost less than those of few.

    Args:
        step: from items to as many results, in their order; an exception among them is raised to whoever asked, and
            what is unfinished comes again, before those who wait. It runs in a thread of its own.
        most: items of one step.
        lanes: steps that are taken at the same time.
    """

    def __init__(
        self,
        step: Callable[[list[Item]], Sequence[Result | Exception | Unfinished[Item]]],
        most: int,
        lanes: int = 1,
    ) -> None:
        self._step = step
        self._most = most
        self._lanes = lanes
        self._threads = ThreadPoolExecutor(lanes, "answer")
        self._loop: AbstractEventLoop | None = None
        self._free = lanes
        self._waiting: deque[tuple[Item, Future[Result]]] = deque()

    async def __call__(self, item: Item) -> Result:
        """The result of an item. Whoever is cancelled leaves; the others do not notice."""
        loop = get_running_loop()
        if loop is not self._loop:  # the former one has ended, whatever it was about to do
            self._loop, self._free, self._waiting = loop, self._lanes, deque()
        result: Future[Result] = loop.create_future()
        self._waiting.append((item, result))
        if len(self._waiting) == 1:
            loop.call_soon(self._begin, loop)
        return await result

    def _begin(self, loop: AbstractEventLoop) -> None:
        """Fill the free lanes with those who wait, the first ones first."""
        while self._free and self._waiting:
            number = min(len(self._waiting), self._most)
            together = [self._waiting.popleft() for _ in range(number)]
            together = [(item, result) for item, result in together if not result.done()]
            if together:
                self._free -= 1
                self._threads.submit(self._serve, loop, together)

    def _serve(self, loop: AbstractEventLoop, together: list[tuple[Item, Future[Result]]]) -> None:
        """Take steps until somebody is finished or waits to join."""
        going = [item for item, _ in together]
        results: Sequence[Result | Exception | Unfinished[Item]] = ()
        while len(going) == len(together):
            try:
                results = self._step(going)
            except Exception as error:  # to be raised where it was waited for
                results = [error] * len(together)
            going = [result.item for result in results if isinstance(result, Unfinished)]
            if self._waiting:
                break
        loop.call_soon_threadsafe(self._end, loop, [result for _, result in together], results)

    def _end(
        self,
        loop: AbstractEventLoop,
        waited: Sequence[Future[Result]],
        results: Sequence[Result | Exception | Unfinished[Item]],
    ) -> None:
        unfinished: list[tuple[Item, Future[Result]]] = []
        for future, result in zip(waited, results, strict=True):
            if future.done():  # its request was cancelled
                continue
            if isinstance(result, Unfinished):
                unfinished.append((result.item, future))
            elif isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._rest(loop, _TURNS, unfinished)

    def _rest(
        self, loop: AbstractEventLoop, turns: int, unfinished: list[tuple[Item, Future[Result]]]
    ) -> None:
        """Free a lane after some turns of the event loop."""
        if turns:
            loop.call_soon(self._rest, loop, turns - 1, unfinished)
        else:
            self._free += 1
            self._waiting.extendleft(reversed(unfinished))
            self._begin(loop)
