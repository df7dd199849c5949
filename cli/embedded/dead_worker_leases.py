"""Release the leases of ended workers before they expire."""

from __future__ import annotations

import socket

from sqlalchemy import delete, select, update

from service.catalog.database import dispose, session_scope
from service.catalog.tables import Chunk, LeaseRow, Task
from service.core.errors import CinestrataError
from service.tasks.lifecycle.state_machine import clear_lease


def release_leases(pid: int | None = None) -> None:
    """Release the leases of an ended process, so that its tasks need not wait until they expire.

    The attempt still counts, so a task that kills its worker is not retried forever. Catalog errors are ignored: leases
    expire anyway.

    Args:
        pid: Process ID on this machine; None releases all leases, which is safe only while no worker runs.
    """
    owner = "" if pid is None else f"{socket.gethostname()}:{pid}:"
    try:
        with session_scope(write=True) as session:
            for task in session.scalars(
                select(Task).where(Task.lease_owner.startswith(owner, autoescape=True))
            ):
                clear_lease(task)
            session.execute(
                update(Chunk)
                .where(Chunk.lease_owner.startswith(owner, autoescape=True))
                .values(lease_owner=None, lease_expires_at=None, fencing_token=Chunk.fencing_token + 1)
                .execution_options(synchronize_session=False)
            )
            if pid is None:  # these leases have no owner
                session.execute(delete(LeaseRow))
    except CinestrataError:
        pass
    finally:
        dispose()  # the next child process must not inherit database connections
