"""What each release adds to those before it: the tasks that it learned, and their words.

Neither ever changes once a task is learned, so a release keeps its own and names the release that it goes on from. What
a library knows is gathered along that line, and a release is as large in the thousandth domain as in the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.errors import ReleaseError
from models.routing.token_profiles import Profiles

__all__ = ["Before", "Learned", "ReleaseTask"]


@dataclass(frozen=True)
class ReleaseTask:
    """A task that a release has learned (or indexed).

    Attributes:
        task_id: id in the catalog.
        name: as the user gave it.
        fingerprint: of the video encoder that made the task's shard.
    """

    task_id: str
    name: str
    fingerprint: str


@dataclass(frozen=True)
class Before:
    """Where a release goes on.

    Attributes:
        release: id of the release before it.
        tasks: how many that one knows, with all that were learned before it; at least one.
    """

    release: str
    tasks: int

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: they are no such things.
        """
        if not isinstance(self.release, str) or type(self.tasks) is not int or self.tasks < 1:
            raise ValueError(f"it cannot go on after {self.tasks!r} tasks of release {self.release!r}")


@dataclass(frozen=True)
class Learned:
    """Tasks in the order in which they were learned, and the words of each.

    Attributes:
        tasks: at least one, where there is a release before.
        profiles: a row for each (``models.routing.router``).
        before: the release that it goes on from; None where these are all tasks there are.
    """

    tasks: tuple[ReleaseTask, ...]
    profiles: Profiles
    before: Before | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: there is not one row of words for each task, or nothing is added to what was there before.
        """
        if len(self.tasks) != len(self.profiles):
            raise ValueError(f"there are {len(self.profiles)} rows of words for {len(self.tasks)} tasks")
        if self.before is not None and not self.tasks:
            raise ValueError("it adds no task to those before it")

    @property
    def count(self) -> int:
        """Of all tasks, those before it among them."""
        return len(self.tasks) + (self.before.tasks if self.before else 0)

    def whole(self, learned: Callable[[str], Learned]) -> Learned:
        """With all that was learned before it.

        Args:
            learned: what the release with an id added.

        Raises:
            ReleaseError: what is before it are not the tasks that it went on from. The count falls from release to
                release, so a line always ends.
        """
        parts = [self]
        while (before := parts[-1].before) is not None:
            part = learned(before.release)
            if part.count != before.tasks:
                raise ReleaseError(
                    f"release {before.release[:12]} knows {part.count} tasks, and another one goes on from "
                    f"{before.tasks} of it"
                )
            parts.append(part)
        tasks = tuple(task for part in reversed(parts) for task in part.tasks)
        if len({task.task_id for task in tasks}) < len(tasks):
            raise ReleaseError(
                "two releases, one of which goes on from the other, have learned the same task"
            )
        try:
            return Learned(tasks, Profiles.joined([part.profiles for part in reversed(parts)]))
        except ValueError as error:
            raise ReleaseError(f"the routing profiles of releases are not of one kind: {error}") from error
