"""Workers that are killed at a point of their job, in processes of their own."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import select

from service.catalog.database import now, session_scope
from service.catalog.tables import Chunk, Task
from service.tasks import lifecycle


def die(*_: Any, **__: Any) -> None:
    """End the process without running any ``finally`` or ``except`` block."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_before(owner: Any, name: str) -> Callable[[], None]:
    """Return a patch with which the process dies instead of calling a function."""
    return lambda: setattr(owner, name, die)


def die_after(owner: Any, name: str) -> Callable[[], None]:
    """Return a patch with which the process dies at the end of a function."""

    def patch() -> None:
        original = getattr(owner, name)

        def call(*given: Any, **fields: Any) -> None:
            original(*given, **fields)
            die()

        setattr(owner, name, call)

    return patch


def run_in_process(job: Callable[[str], object], task: str, patch: Callable[[], None] | None = None) -> int:
    """Exit code of a process that runs a job, with a patch; a negative number is a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if patch:
                patch()
            job(task)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def expire_leases(task: str) -> None:
    """Let the leases of the dead worker expire."""
    with session_scope(write=True) as session:
        past = now(session) - timedelta(seconds=1)
        session.get_one(Task, task).lease_expires_at = past
        for chunk in session.scalars(select(Chunk).where(Chunk.lease_owner.is_not(None))):
            chunk.lease_expires_at = past
    lifecycle.reconcile()
