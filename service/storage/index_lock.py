"""The write lock of the index, for changes of both the index and the catalog.

A compaction holds the lock for minutes. A transaction that waited for it would hold its rows as long, and on SQLite all
other writers of the catalog. So every change of both takes the lock first, and then begins its transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from index.shard_store import ShardStore
from service.core.errors import Unavailable
from service.core.settings import settings

WAIT_SECONDS = 10.0  # of a request, which occupies a thread

_REPORT_SECONDS = 1.0


@contextmanager
def index_lock(
    report_alive: Callable[[], object] | None = None, *, wait_seconds: float | None = None
) -> Iterator[None]:
    """Hold the write lock of the index; operations of the shard store in the block use it.

    Args:
        report_alive: Called every second while another writer has the lock; an exception ends the wait. None: the wait
            ends after ``wait_seconds``.
        wait_seconds: Maximum time to wait; None: ``WAIT_SECONDS``.

    Raises:
        Unavailable: another writer has the lock, or the index cannot be written.
    """
    store = ShardStore(settings().index_dir)
    wait_seconds = WAIT_SECONDS if wait_seconds is None else wait_seconds
    deadline = time.monotonic() + wait_seconds
    with ExitStack() as stack:
        while True:
            try:
                store.root.mkdir(parents=True, exist_ok=True)
                stack.enter_context(store.write_lock(min(_REPORT_SECONDS, wait_seconds)))
                break
            except TimeoutError as error:
                if report_alive is not None:
                    report_alive()
                elif time.monotonic() >= deadline:
                    raise Unavailable(
                        "Another process changes the index, for example by a compaction; try again.", 10
                    ) from error
            except OSError as error:
                raise Unavailable(f"The index cannot be written: {error}", 30) from error
        yield
