"""A release in memory: everything learned up to a task.

A task and its routing profile never change once the task is learned. A release therefore stores only its own, and names
its parent. Readers collect a library's tasks along this *lineage*, and the release of the thousandth domain is as small
as that of the first.

Calibration captions are training captions, with the results that they had before they were learned. A release finds its
own training videos by their captions far better than other videos, so these captions cannot show how well it finds
others. A closed-form method can learn a task again without some of its videos; the captions of these videos are then
searched in the task, and the results are kept with the release. Later releases search the same captions in their other
tasks, which have not learned from them.

For the same reason, the captions of some videos, the *fold*, are measured with the vectors and the routing evidence of
a solution without them (cross-fitting). The release keeps these, so that later releases measure the task in the same
way. Their basis is that of the release, so that the vectors of other videos can be compared with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import ReleaseError
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import RoutingProfiles


@dataclass(frozen=True)
class ReleaseTask:
    """A task that a release has learned or indexed, and the fingerprint of the video encoder that made its shard."""

    task_id: str
    name: str
    fingerprint: str


@dataclass(frozen=True)
class ParentRelease:
    """Reference to the release that another one continues; raises ValueError for a wrong type or range."""

    release: str
    tasks: int  # number of the parent's tasks, with those of its ancestors; at least one

    def __post_init__(self) -> None:
        if not isinstance(self.release, str) or type(self.tasks) is not int or self.tasks < 1:
            raise ValueError(f"release {self.release!r} with {self.tasks!r} tasks cannot be a parent")


@dataclass(frozen=True)
class TaskLineage:
    """The tasks of a release in the order in which they were learned, with their routing profiles; raises ValueError if
    the numbers of profiles and tasks differ, or if the release adds no task to its parent's.
    """

    tasks: tuple[ReleaseTask, ...]  # tasks that the release adds; at least one if it has a parent
    profiles: RoutingProfiles
    parent: ParentRelease | None = None  # parent release; None if these are all tasks
    # IDs of tasks whose profile is empty because an earlier version had counted other tokens than word pieces. Readers
    # count their captions again
    uncounted: frozenset[str] = frozenset()

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
        """Collect the tasks of all ancestors, from the tasks that each release adds, into one lineage without a parent.

        Every lineage ends, because the number of tasks falls from release to parent. Raises ReleaseError if an ancestor
        has another number of tasks than its child recorded, if two releases have learned the same task, or if the
        vocabularies of the routing profiles differ.
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
        uncounted = frozenset[str]().union(*(part.uncounted for part in parts))
        return TaskLineage(tasks, profiles, uncounted=uncounted)


class Lineage(NamedTuple):
    """Releases of one encoder that continue each other, newest first, and the newest one's tasks in learned order."""

    releases: tuple[str, ...]
    tasks: tuple[ReleaseTask, ...]


def find_lineages(releases: Iterable[str], read: Callable[[str], TaskLineage]) -> list[Lineage]:
    """Divide a library's releases, in order of publication, into lineages, that of the newest release first; ``read``
    gets the tasks that a release adds.
    """
    lineages: list[Lineage] = []
    continued: set[str] = set()
    for newest in reversed(list(releases)):
        parts: dict[str, TaskLineage] = {}
        release = None if newest in continued else newest
        while release is not None:
            parts[release] = part = read(release)
            release = part.parent.release if part.parent else None
        if parts:
            tasks = (task for part in reversed(parts.values()) for task in part.tasks)
            lineages.append(Lineage(tuple(parts), tuple(tasks)))
            continued |= parts.keys()
    return lineages


Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MeasuredFold:
    """What a solution without the fold gives: query vectors, video vectors, and routing evidence for the task."""

    videos: Ids  # vector IDs of the fold's Q videos, ascending, [Q]
    captions: Ids  # caption_digest of each video's caption, int64 [Q]
    queries: npt.NDArray[np.float16]  # query vectors of the captions, float16 [Q, dim]
    ids: Ids  # vector IDs of the fold's videos and of other videos in the task, ascending, [N]
    vectors: npt.NDArray[np.float16]  # vectors of these videos, float16 [N, dim]
    tokens: npt.NDArray[np.int32]  # token IDs of the task's routing profile, ascending
    values: npt.NDArray[np.float32]
    # tensors that replace those of the release in its routing evidence, by name
    routing: Mapping[str, npt.NDArray[Any]]

    def query_vectors(self, videos: Ids) -> npt.NDArray[np.float32]:
        """Look up the query vectors of videos in the fold, ``[n, dim]``."""
        return self.queries[np.searchsorted(self.videos, videos)].astype(np.float32)

    def video_vectors(self, ids: Ids) -> npt.NDArray[np.float32]:
        """Look up the vectors of videos that are among ``ids``, ``[n, dim]``."""
        return self.vectors[np.searchsorted(self.ids, ids)].astype(np.float32)

    def has_caption(self, video: int, caption: str) -> bool:
        """Check whether the fold contains a video with this caption, which may have been edited since."""
        digests = self.captions[self.videos == video]
        return bool(len(digests)) and digests[0] == caption_digest(caption)


def caption_digest(caption: str) -> int:
    """Compute a digest that recognizes a caption; the caption itself stays in the catalog, where it can be deleted."""
    return int.from_bytes(blake2b(caption.encode(), digest_size=8).digest(), signed=True)


Array = npt.NDArray[Any]

# Prefix of tensors that replace others where the captions of folds must count as not learned.
MEASURED = "measured."


@dataclass(frozen=True)
class CalibrationCaption:
    """A training video's caption, with its results in the video's task as if the video had not been learned."""

    task: str
    video: int  # vector ID of the video
    text: str
    words: float  # evidence of the words for the task, in nats
    captions: float  # evidence of the captions for the task, in nats
    coverage: float  # share of the caption's distinct tokens that the task's other captions contain
    score: float  # cosine of the video
    ids: tuple[int, ...]  # vector IDs of the nearest videos in the task
    cosines: tuple[float, ...]  # cosines of these videos, best first
    others: tuple[float, ...] = ()  # cosines of other videos that were not learned
    # cosine and evidence of words for the caption as people retype it: of the video, then of its rivals
    retyped: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class ReleaseState:
    """The learned state after a task."""

    method: str
    kind: str  # kind of the encoder family for the release (encoder_registry)
    backbone: str
    backbone_fingerprint: str  # fingerprint of the backbone's weights and preprocessing
    fingerprint: str  # fingerprint of the release's video encoder
    frames: int
    tasks: list[ReleaseTask]  # learned tasks in order; position t−1 is task t
    config: dict[str, Any]
    profiles: RoutingProfiles
    # adapters or towers, by name; release_tensors converts them for torch
    tensors: dict[str, Array] = field(default_factory=dict)
    # calibration of searches; None if the release was not calibrated
    confidence: ConfidenceModel | None = None
    # training captions for calibrating later releases; query encoders do not read them
    calibration: tuple[CalibrationCaption, ...] = ()
    # measured fold of the newest task; None without one, and for query encoders
    fold: MeasuredFold | None = None
    uncounted: frozenset[str] = frozenset()  # tasks without a routing profile, see TaskLineage
    is_partial: bool = False  # whether tensors that only training reads are stored apart, and missing here

    def as_measured(self) -> ReleaseState:
        """Use the tensors that have not learned the captions of folds."""
        return replace(self, tensors={**self.tensors, **arrays_with_prefix(MEASURED, self.tensors)})


def arrays_with_prefix(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Select the arrays whose names start with a prefix, and strip it."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def video_fingerprint(backbone_fingerprint: str, dim: int, frames: int, tensors: Mapping[str, Array]) -> str:
    """Compute a video encoder's fingerprint from backbone, preprocessing, frames per video, and learned weights.

    Encoders with equal fingerprints produce equal vectors, up to rounding; vectors of different fingerprints are never
    compared.
    """
    digest = hashlib.sha256(f"{backbone_fingerprint}:{frames}:{dim}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.tobytes())
    return digest.hexdigest()
