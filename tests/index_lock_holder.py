"""Another writer of the index, which holds its lock as a compaction does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from index.files.durable_files import exclusive_lock
from service.core.settings import settings


@contextmanager
def compaction() -> Iterator[Callable[[], None]]:
    """Another thread that holds the lock of the index until the yielded function is called."""
    is_held, end = threading.Event(), threading.Event()

    def hold() -> None:
        settings().index_dir.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(settings().index_dir / "write.lock"):
            is_held.set()
            end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()

    def finish() -> None:
        end.set()
        thread.join()

    yield finish
    finish()
