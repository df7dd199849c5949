"""What a worker needs to know about the task that it claimed, without a catalog connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.catalog.tables import Task


@dataclass(frozen=True)
class ClaimedTask:
    """A task's columns at the time of its claim."""

    id: str
    name: str
    position: int
    method: str
    settings: dict[str, Any]
    state: str
    counts: dict[str, Any]
    progress: dict[str, Any]
    held_out: str | None
    target_id: str | None
    relearns_id: str | None
    attempts: int
    request_id: str | None = None

    @classmethod
    def of(cls, task: Task) -> ClaimedTask:
        """Copy the columns that a worker needs."""
        return cls(
            id=task.id,
            name=task.name,
            position=task.position,
            method=task.method,
            settings=task.settings,
            state=task.state,
            counts=dict(task.counts),
            progress=dict(task.progress),
            held_out=task.held_out,
            target_id=task.target_id,
            relearns_id=task.relearns_id,
            attempts=task.attempts,
            request_id=task.request_id,
        )
