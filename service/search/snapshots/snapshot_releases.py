"""What each release in a snapshot added to the library, and which release made each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from index.errors import ShardStoreError
from index.index_snapshot import IndexSnapshot
from models.encoders.encoder_registry import read_query_release, read_video_release
from models.errors import ModelError
from models.releases.release_files import LINEAGE_FILES, read_lineage
from models.releases.release_state import ParentRelease, ReleaseState, ReleaseTask, TaskLineage
from models.routing.routing_profiles import RoutingProfiles


class SnapshotLineage:
    """Reads what a release added, by its ID. Checksums are verified; weights are not read.

    If a release is unreadable, its contribution is reconstructed from the manifest, which still tells the shards that
    it made and the release before it. All other tasks keep their positions and are served; only that release's tasks
    are degraded.

    Args:
        index_snapshot: Snapshot that contains the releases.
        vocabulary: Vocabulary size V of the backbone.
        known: Contributions already in memory, by release ID.

    Attributes:
        contributions: Contributions that were read, by release ID.
        broken: Why the release that learned a task cannot be read, by task ID.
    """

    def __init__(
        self, index_snapshot: IndexSnapshot, vocabulary: int, known: Mapping[str, TaskLineage]
    ) -> None:
        self.contributions: dict[str, TaskLineage] = {}
        self.broken: dict[str, str] = {}
        self._index_snapshot = index_snapshot
        self._vocabulary = vocabulary
        self._known = known

    def __call__(self, release_id: str) -> TaskLineage:
        """Read the contribution of a release, or reconstruct it.

        Raises:
            ModelError, ShardStoreError, OSError: The contribution cannot be read, and the release made no shard.
        """
        try:
            self.contributions[release_id] = self._known.get(release_id) or read_lineage(
                self._index_snapshot.release_folder(release_id, files=LINEAGE_FILES)
            )
        except (ModelError, ShardStoreError, OSError) as error:
            contribution = self._reconstruct(release_id)
            if not contribution.tasks:
                raise
            reason = f"the release that learned it cannot be read: {error}"
            self.broken |= {task.task_id: reason for task in contribution.tasks}
            return contribution
        return self.contributions[release_id]

    def _reconstruct(self, release_id: str) -> TaskLineage:
        """Reconstruct a contribution: the tasks of the release's shards, without names and routing profiles."""
        shards = list(self._index_snapshot.manifest.shards.values())
        own = [place for place, shard in enumerate(shards) if shard.release == release_id]
        before = ParentRelease(shards[own[0] - 1].release, own[0]) if own and own[0] else None
        tasks = tuple(
            ReleaseTask(shards[place].task, shards[place].task, shards[place].fingerprint) for place in own
        )
        empty = RoutingProfiles.from_dense(np.zeros((len(tasks), self._vocabulary), np.float32))
        return TaskLineage(tasks, empty, before)


class PinnedReleases(Mapping[str, ReleaseState]):
    """The release that made each task's shard, by task ID, read on access.

    None is cached: releases may be large, and encoders keep little of them.

    Args:
        read: Reads the release of a task.
    """

    def __init__(self, tasks: Iterable[str], read: Callable[[str], ReleaseState]) -> None:
        self._tasks = dict.fromkeys(tasks)
        self._read = read

    def __getitem__(self, task: str) -> ReleaseState:
        return self._read(task)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


def pinned_video_releases(index_snapshot: IndexSnapshot, tasks: Iterable[str]) -> PinnedReleases:
    """Get the video side of the release that made each task's shard."""
    shards = index_snapshot.manifest.shards
    return PinnedReleases(
        tasks, lambda task: read_video_release(index_snapshot.release_folder(shards[task].release))
    )


def pinned_query_releases(
    index_snapshot: IndexSnapshot, release_id: str, release: ReleaseState, broken: dict[str, str]
) -> PinnedReleases:
    """Get the query side of the release that made each task's shard.

    If that release is broken, the current one takes its place so that other tasks can be served.

    Args:
        broken: Filled with the reason, by task ID, for accessed tasks whose release cannot be read.
    """
    shards = index_snapshot.manifest.shards

    def read(task: str) -> ReleaseState:
        shard = shards.get(task)
        if shard is None or shard.release == release_id:
            return release
        try:
            return read_query_release(index_snapshot.release_folder(shard.release), profiles=False)
        except (ModelError, ShardStoreError, OSError) as error:
            broken[task] = f"the release that made its shard cannot be read: {error}"
            return release

    return PinnedReleases([task.task_id for task in release.tasks], read)
