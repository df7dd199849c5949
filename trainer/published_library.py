"""What is laid down already: the releases and shards that a new task builds on. Read, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ShardStoreError
from index.files.durable_files import hash_files
from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from index.shards.searchable_shard import SearchableShard
from models.encoders.encoder_registry import read_query_release
from models.releases.release_files import read_lineage, read_release
from models.releases.release_lineage import ParentRelease, TaskLineage
from models.releases.release_state import ReleaseState
from trainer.errors import LibraryDamaged
from trainer.task_data import StoredVectors

__all__ = ["Library"]


class Library:
    """One generation of a store, as the trainer sees it."""

    def __init__(self, store: ShardStore) -> None:
        self.store = store
        self._snapshot = IndexSnapshot.open(store, verify=False)
        self._folders: dict[str, Path] = {}
        self._releases: dict[str, ReleaseState] = {}
        self._pinned: dict[str, ReleaseState] = {}

    @property
    def manifest(self) -> Manifest:
        return self._snapshot.manifest

    @property
    def degraded(self) -> dict[str, str]:
        """Task → why its shard cannot be read. Learning goes on without it."""
        return self._snapshot.degraded

    def release(self, identifier: str) -> ReleaseState:
        """A release, read once.

        Raises:
            LibraryDamaged: its files, or those of a release that it goes on from, are not the ones that were published.
            ReleaseError: they cannot be understood.
        """
        if identifier not in self._releases:
            self._releases[identifier] = read_release(self._folder(identifier), read_parent=self._learned)
        return self._releases[identifier]

    @cached_property
    def current(self) -> ReleaseState | None:
        """The newest release; None before the first task."""
        return self.release(self.manifest.release) if self.manifest.release else None

    def parent_release(self, state: ReleaseState) -> ParentRelease | None:
        """Where a new release goes on; None before the first task, and for one that does not go on from the newest."""
        identifier, tasks = self.manifest.release, self.current.tasks if self.current else []
        goes_on = len(state.tasks) > len(tasks) > 0 and state.tasks[: len(tasks)] == tasks
        return ParentRelease(identifier, len(tasks)) if identifier and goes_on else None

    def pinned_releases(self) -> dict[str, ReleaseState]:
        """For each task, the release that made its shard: what queries are encoded with, without words for routing."""
        for shard in self.manifest.shards.values():
            if shard.release not in self._pinned:
                folder = self._folder(shard.release)
                self._pinned[shard.release] = read_query_release(folder, profiles=False)
        return {task: self._pinned[shard.release] for task, shard in self.manifest.shards.items()}

    def _learned(self, identifier: str) -> TaskLineage:
        return read_lineage(self._folder(identifier))

    def _folder(self, identifier: str) -> Path:
        """Of a release, after all its files were compared with their checksums, once."""
        if identifier not in self._folders:
            folder = self._snapshot.release_folder(identifier)
            if not folder.is_dir() or hash_files(folder) != self.manifest.releases[identifier].files:
                raise LibraryDamaged(
                    f"release {identifier[:12]} was altered or is missing: restore "
                    f"index/releases/{identifier} from a backup, then retry the task"
                )
            self._folders[identifier] = folder
        return self._folders[identifier]

    def shard(self, task: str) -> SearchableShard | None:
        """A task's shard; None when it is degraded."""
        if task in self.degraded:
            return None
        shard = self._snapshot.shard(task, fingerprint=self.manifest.shards[task].fingerprint)
        try:
            _ = shard.ids  # opened here, where it can still be set aside
        except ShardStoreError as error:
            self._snapshot.mark_degraded(task, str(error))
            return None
        return shard

    def stored_vectors(self, training: Mapping[str, npt.NDArray[np.int64]]) -> StoredVectors:
        """Stored vectors of earlier tasks. What was deleted is not among them.

        Args:
            training: for each task, the ids of its training videos.
        """
        shards = [(self.shard(task), ids) for task, ids in training.items()]
        return StoredVectors([(s, np.intersect1d(ids, s.ids)) for s, ids in shards if s is not None])
