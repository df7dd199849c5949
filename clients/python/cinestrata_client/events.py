"""Server-sent events of a task."""

from __future__ import annotations

from cinestrata_client.models import TaskEvent

__all__ = ["EventParser"]


class EventParser:
    """Collects the lines of an event stream into events."""

    def __init__(self) -> None:
        self._data: list[str] = []

    def feed(self, line: str) -> TaskEvent | None:
        """Add a line; returns the event that it completes, if any."""
        if line:
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            return None
        text, self._data = "\n".join(self._data), []
        return TaskEvent.model_validate_json(text) if text else None
