"""Lazy mappings from tasks to the releases that produced their shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from index.errors import ShardStoreError
from index.index_snapshot import IndexSnapshot
from models.encoders.encoder_registry import read_query_release, read_video_release
from models.errors import ModelError
from models.releases.release_state import ReleaseState

__all__ = ["PinnedQueryReleases", "PinnedVideoReleases"]


class _PinnedReleases(Mapping[str, ReleaseState]):
    """Task ID → release. Releases may be large and encoders keep little of them, so none is cached."""

    def __init__(self, index_snapshot: IndexSnapshot, tasks: Sequence[str]) -> None:
        self._index_snapshot = index_snapshot
        self._tasks = dict.fromkeys(tasks)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


class PinnedVideoReleases(_PinnedReleases):
    """Task ID → video side of the release that produced the task's shard, read on access.

    Args:
        index_snapshot: Snapshot that contains the shards and releases.
        tasks: IDs of the tasks.
    """

    def __getitem__(self, task: str) -> ReleaseState:
        release = self._index_snapshot.manifest.shards[task].release
        return read_video_release(self._index_snapshot.release_folder(release))


class PinnedQueryReleases(_PinnedReleases):
    """Task ID → query side of the release that produced the task's shard, read on access.

    Where that release is broken, the current release takes its place so that other tasks can be served, and the task is
    recorded in :attr:`broken`.

    Args:
        index_snapshot: Snapshot that contains the shards and releases.
        release_id: Identifier of the current release.
        release: State of the current release.

    Attributes:
        broken: Task ID → reason why its release cannot be read, for the tasks that were accessed.
    """

    def __init__(self, index_snapshot: IndexSnapshot, release_id: str, release: ReleaseState) -> None:
        super().__init__(index_snapshot, [task.task_id for task in release.tasks])
        self.broken: dict[str, str] = {}
        self._release_id = release_id
        self._release = release

    def __getitem__(self, task: str) -> ReleaseState:
        shard = self._index_snapshot.manifest.shards.get(task)
        if shard is None or shard.release == self._release_id:
            return self._release
        try:
            folder = self._index_snapshot.release_folder(shard.release)
            return read_query_release(folder, profiles=False)
        except (ModelError, ShardStoreError, OSError) as error:
            self.broken[task] = f"the release that made its shard cannot be read: {error}"
            return self._release
