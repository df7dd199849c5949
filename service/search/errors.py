"""Errors about tasks that are missing from a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from cinestrata_schemas.problems import Action
from service.core.errors import Conflict, FieldError, InvalidInput


class UnknownTask(InvalidInput):
    """A request names a task that the snapshot does not have.

    Args:
        known: Some searchable tasks to suggest.
    """

    def __init__(self, task: str, field: str, known: Sequence[str]) -> None:
        message = f"There is no searchable task {task[:100]!r}."
        hint = f"Searchable tasks: {', '.join(map(repr, known)) or 'none'}."
        super().__init__(f"{field}: {message} {hint}", [FieldError(field, message, hint)])
        self.task = task


class TaskNotLoaded(Conflict):
    """A request names a video whose task the snapshot does not contain."""

    def __init__(self, video_id: str, task: str) -> None:
        super().__init__(
            f"Video {video_id!r} has no vector yet: its task is not finished.",
            remedy=Action(name="show_task", id=task),
        )
        self.task = task


class TaskNotServed(Conflict):
    """A request names a task learned after the served release."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"Task {task[:100]!r} was learned after the served release, so it isn't searched: serve a "
            "later release.",
            remedy=Action(name="serve_release", id="newest"),
        )
