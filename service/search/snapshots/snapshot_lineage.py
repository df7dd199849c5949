"""What the releases of a generation have learned, each for itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from index.errors import ShardStoreError
from index.index_snapshot import IndexSnapshot
from models.errors import ModelError
from models.releases.release_files import LINEAGE_FILES, read_lineage
from models.releases.release_lineage import ParentRelease, ReleaseTask, TaskLineage
from models.routing.routing_profiles import RoutingProfiles

__all__ = ["Lineage"]


class Lineage:
    """Gives what a release has learned itself, by its id. Its checksums are compared; weights are not looked at.

    Where that cannot be read, the manifest still tells which shards the release made, and which release made the shard
    in front of them. So the others keep their places and are served, and these alone are left out by name.

    Args:
        vocabulary: V of the backbone.
        known: what is read already, by release id.

    Attributes:
        read: what was asked for, by release id.
        broken: task id → what is wrong with the release that learned it.
    """

    def __init__(self, snapshot: IndexSnapshot, vocabulary: int, known: Mapping[str, TaskLineage]) -> None:
        self.read: dict[str, TaskLineage] = {}
        self.broken: dict[str, str] = {}
        self._snapshot = snapshot
        self._vocabulary = vocabulary
        self._known = known

    def __call__(self, release: str) -> TaskLineage:
        """
        Raises:
            ModelError, ShardStoreError, OSError: it cannot be read, and it made no shard.
        """
        try:
            self.read[release] = self._known.get(release) or read_lineage(
                self._snapshot.release_folder(release, files=LINEAGE_FILES)
            )
        except (ModelError, ShardStoreError, OSError) as error:
            learned = self._by_shards(release)
            if not learned.tasks:
                raise
            why = f"the release that learned it cannot be read: {error}"
            self.broken |= {task.task_id: why for task in learned.tasks}
            return learned
        return self.read[release]

    def _by_shards(self, release: str) -> TaskLineage:
        """The tasks whose shards a release made, without their names and words."""
        shards = list(self._snapshot.manifest.shards.values())
        own = [place for place, shard in enumerate(shards) if shard.release == release]
        before = ParentRelease(shards[own[0] - 1].release, own[0]) if own and own[0] else None
        tasks = tuple(
            ReleaseTask(shards[place].task, shards[place].task, shards[place].fingerprint) for place in own
        )
        silent = RoutingProfiles.from_dense(np.zeros((len(tasks), self._vocabulary), np.float32))
        return TaskLineage(tasks, silent, before)
