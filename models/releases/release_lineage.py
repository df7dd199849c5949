"""The lineage of releases: the tasks and routing profiles that each release adds to its parent's.

A task and its routing profile never change once the task is learned. A release therefore stores only its own, and names
its parent. Readers collect a library's tasks along this lineage, and the release of the thousandth domain is as small
as that of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.errors import ReleaseError
from models.routing.routing_profiles import RoutingProfiles


@dataclass(frozen=True)
class ReleaseTask:
    """A task that a release has learned or indexed.

    Attributes:
        fingerprint: Fingerprint of the video encoder that made the task's shard.
    """

    task_id: str
    name: str
    fingerprint: str


@dataclass(frozen=True)
class ParentRelease:
    """Reference to the release that another one continues.

    Attributes:
        tasks: How many tasks the parent knows, with those of its ancestors; at least one.

    Raises:
        ValueError: A field has another type or is out of range.
    """

    release: str
    tasks: int

    def __post_init__(self) -> None:
        if not isinstance(self.release, str) or type(self.tasks) is not int or self.tasks < 1:
            raise ValueError(f"release {self.release!r} with {self.tasks!r} tasks cannot be a parent")


@dataclass(frozen=True)
class TaskLineage:
    """The tasks of a release in the order in which they were learned, with their routing profiles.

    Attributes:
        tasks: Tasks that the release adds; at least one if it has a parent.
        parent: Parent release; None if these are all tasks.

    Raises:
        ValueError: The numbers of profiles and tasks differ, or the release adds no task to its parent's.
    """

    tasks: tuple[ReleaseTask, ...]
    profiles: RoutingProfiles
    parent: ParentRelease | None = None

    def __post_init__(self) -> None:
        if len(self.tasks) != len(self.profiles):
            raise ValueError(f"there are {len(self.profiles)} routing profiles for {len(self.tasks)} tasks")
        if self.parent is not None and not self.tasks:
            raise ValueError("the release adds no task to those of its parent")

    @property
    def total_tasks(self) -> int:
        """Number of tasks, with those of the ancestors."""
        return len(self.tasks) + (self.parent.tasks if self.parent else 0)

    def resolve(self, read_parent: Callable[[str], TaskLineage]) -> TaskLineage:
        """Collect the tasks of all ancestors into one lineage without a parent.

        Every lineage ends, because the number of tasks falls from release to parent.

        Args:
            read_parent: Function from a release's ID to the tasks that it adds.

        Raises:
            ReleaseError: An ancestor has another number of tasks than its child recorded, two releases have learned
                the same task, or the vocabularies of the routing profiles differ.
        """
        parts = [self]
        while (parent := parts[-1].parent) is not None:
            part = read_parent(parent.release)
            if part.total_tasks != parent.tasks:
                raise ReleaseError(
                    f"release {parent.release[:12]} knows {part.total_tasks} tasks, but a later release continues it "
                    f"after {parent.tasks}"
                )
            parts.append(part)
        tasks = tuple(task for part in reversed(parts) for task in part.tasks)
        if len({task.task_id for task in tasks}) < len(tasks):
            raise ReleaseError("a release and one of its ancestors have learned the same task")
        try:
            profiles = RoutingProfiles.concatenate([part.profiles for part in reversed(parts)])
        except ValueError as error:
            raise ReleaseError(f"the routing profiles of the releases do not match: {error}") from error
        return TaskLineage(tasks, profiles)
