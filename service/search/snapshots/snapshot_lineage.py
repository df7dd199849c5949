"""Contributions of the releases in a snapshot: tasks, names and routing profiles that each release added."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from index.errors import ShardStoreError
from index.index_snapshot import IndexSnapshot
from models.errors import ModelError
from models.releases.release_files import LINEAGE_FILES, read_lineage
from models.releases.release_lineage import ParentRelease, ReleaseTask, TaskLineage
from models.routing.routing_profiles import RoutingProfiles

__all__ = ["SnapshotLineage"]


class SnapshotLineage:
    """Reads the contribution of a release by its ID. Checksums are verified; weights are not read.

    Where a contribution cannot be read, it is reconstructed from the manifest, which still says which shards the
    release made and which release made the shard before them. All other tasks then keep their positions and are served,
    and only the tasks of that release are degraded.

    Args:
        index_snapshot: Snapshot that contains the releases.
        vocabulary: Vocabulary size V of the backbone.
        known: Contributions that are already in memory, by release ID.

    Attributes:
        contributions: Contributions that were read, by release ID.
        broken: Task ID → reason why the release that learned it cannot be read.
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
        """Return the contribution of a release.

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
        """The tasks whose shards a release made, without their names and routing profiles."""
        shards = list(self._index_snapshot.manifest.shards.values())
        own = [place for place, shard in enumerate(shards) if shard.release == release_id]
        before = ParentRelease(shards[own[0] - 1].release, own[0]) if own and own[0] else None
        tasks = tuple(
            ReleaseTask(shards[place].task, shards[place].task, shards[place].fingerprint) for place in own
        )
        empty = RoutingProfiles.from_dense(np.zeros((len(tasks), self._vocabulary), np.float32))
        return TaskLineage(tasks, empty, before)
