"""Leases of workers that are known to be dead: given back at once instead of when they run out."""

from __future__ import annotations

import socket

from sqlalchemy import select

from service.catalog.database import dispose, session_scope
from service.catalog.tables import Task
from service.core.errors import CinestrataError
from service.tasks.lifecycle.state_machine import clear_lease

__all__ = ["release_leases"]


def release_leases(pid: int | None = None) -> None:
    """Drop the leases of a process of this machine that has ended, or all of them where nobody can be at work.

    The attempt still counts, so a task that kills its worker is not tried for ever. Best effort: leases run
    out by themselves.
    """
    owner = "" if pid is None else f"{socket.gethostname()}:{pid}:"
    try:
        with session_scope(write=True) as session:
            for task in session.scalars(
                select(Task).where(Task.lease_owner.startswith(owner, autoescape=True))
            ):
                clear_lease(task)
    except CinestrataError:
        pass
    finally:
        dispose()  # connections must not travel into the next child
