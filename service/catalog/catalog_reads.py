"""Read the catalog for searches, with a bounded wait and a circuit breaker.

A database that refuses connections fails a read at once. One that does not respond, such as behind a network that drops
packets, would hold each search until TCP times out. So the first read that fails or takes too long interrupts all of
the process's reads: they fail at once until a background thread reaches the database again.
"""

from __future__ import annotations

from asyncio import wait_for, wrap_future
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event, Lock, Thread
from typing import TypeVar

import structlog

from service.catalog.database import engine, ping
from service.core.errors import Unavailable

log = structlog.get_logger(__name__)

Value = TypeVar("Value")

_PROBE_SECONDS = 0.5  # between attempts to reach an unreachable database
_THREADS = 8  # a read that does not return occupies one until TCP gives up
_RETRY_SECONDS = 5  # Retry-After


class CatalogReads:
    """A process's catalog reads. Thread-safe.

    Attributes:
        timeout: Seconds after which the database counts as unreachable. Reads from an SQLite file have no limit.
    """

    timeout = 2.0

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "catalog-read")
        self._is_interrupted = False
        self._lock = Lock()
        self._is_closed = Event()

    @property
    def is_interrupted(self) -> bool:
        """Whether the last attempt to reach the database failed."""
        return self._is_interrupted

    def read(self, function: Callable[[], Value]) -> Value:
        """Run a function that reads the catalog.

        Raises:
            Unavailable: The catalog cannot be reached, or does not respond in time.
        """
        self.require_reachable()
        with self._watch():
            if engine().dialect.name == "sqlite":
                return function()
            return self._submit(function).result(self.timeout)

    async def read_async(self, function: Callable[[], Value]) -> Value:
        """Run :meth:`read` without blocking the event loop. Errors as for :meth:`read`."""
        self.require_reachable()
        with self._watch():
            is_bounded = engine().dialect.name != "sqlite"
            return await wait_for(wrap_future(self._submit(function)), self.timeout if is_bounded else None)

    def require_reachable(self) -> None:
        """Check that the last attempt reached the database. No I/O.

        Raises:
            Unavailable: It was not.
        """
        if self._is_interrupted:
            raise Unavailable("The catalog database is unreachable or busy; try again.", _RETRY_SECONDS)

    def close(self) -> None:
        """Stop the background thread."""
        self._is_closed.set()

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """Interrupt the reads if one fails or takes too long."""
        try:
            yield
        except TimeoutError:
            error = Unavailable("The catalog database does not respond; try again.", _RETRY_SECONDS)
            self._interrupt(error)
            raise error from None
        except Unavailable as error:
            self._interrupt(error)
            raise

    def _submit(self, function: Callable[[], Value]) -> Future[Value]:
        return self._threads.submit(copy_context().run, function)

    def _interrupt(self, error: Unavailable) -> None:
        with self._lock:
            if self._is_interrupted or self._is_closed.is_set():
                return
            self._is_interrupted = True
        log.warning("catalog_unreachable", error=error.detail)
        try:
            Thread(target=self._probe, name="catalog-probe", daemon=True).start()
        except RuntimeError as failure:  # no thread is free; the next read will try the database instead
            self._is_interrupted = False
            log.warning("catalog_probe_not_started", error=str(failure))

    def _probe(self) -> None:
        reason: str | None = None
        while not self._is_closed.wait(_PROBE_SECONDS):
            try:
                ping()
            except Unavailable:
                continue
            except Exception as error:  # if this thread ended, reads would never resume
                if str(error) != reason:
                    reason = str(error)
                    log.warning("catalog_probe_failed", error=reason, kind=type(error).__name__)
                continue
            log.info("catalog_reachable")
            break
        self._is_interrupted = False
