"""What is laid down already: the releases and shards that a new task builds on. Read, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from index import Manifest, ShardStore, ShardStoreError, Snapshot, TaskVectors
from index.durable import hash_files
from models.release import ReleaseState, read_release
from trainer.data import StoredVectors
from trainer.errors import LibraryDamaged

__all__ = ["Library"]


class Library:
    """One generation of a store, as the trainer sees it."""

    def __init__(self, store: ShardStore) -> None:
        self.store = store
        self._snapshot = Snapshot.open(store, verify=False)
        self._releases: dict[tuple[str, bool], ReleaseState] = {}

    @property
    def manifest(self) -> Manifest:
        return self._snapshot.manifest

    @property
    def degraded(self) -> dict[str, str]:
        """Task → why its shard cannot be read. Learning goes on without it."""
        return self._snapshot.degraded

    def release(self, identifier: str, *, for_queries: bool = False) -> ReleaseState:
        """A release, read once.

        Args:
            for_queries: only what queries are encoded with.

        Raises:
            LibraryDamaged: its files are not the ones that were published.
            ReleaseError: they cannot be understood.
        """
        if (identifier, for_queries) not in self._releases:
            folder = self._snapshot.release_folder(identifier)
            if not folder.is_dir() or hash_files(folder) != self.manifest.releases[identifier].files:
                raise LibraryDamaged(
                    f"release {identifier[:12]} was altered or is missing: restore "
                    f"index/releases/{identifier} from a backup, then retry the task"
                )
            self._releases[identifier, for_queries] = read_release(folder, for_queries=for_queries)
        return self._releases[identifier, for_queries]

    @cached_property
    def current(self) -> ReleaseState | None:
        """The newest release; None before the first task."""
        return self.release(self.manifest.release) if self.manifest.release else None

    def pinned(self) -> dict[str, ReleaseState]:
        """For each task, the release that made its shard."""
        shards = self.manifest.shards.items()
        return {task: self.release(shard.release, for_queries=True) for task, shard in shards}

    def shard(self, task: str) -> TaskVectors | None:
        """A task's shard; None when it is degraded."""
        if task in self.degraded:
            return None
        shard = self._snapshot.shard(task, fingerprint=self.manifest.shards[task].fingerprint)
        try:
            _ = shard.ids  # opened here, where it can still be set aside
        except ShardStoreError as error:
            self._snapshot.set_aside(task, str(error))
            return None
        return shard

    def memory(self, training: Mapping[str, npt.NDArray[np.int64]]) -> StoredVectors:
        """Stored vectors of earlier tasks. What was deleted is not among them.

        Args:
            training: for each task, the ids of its training videos.
        """
        shards = [(self.shard(task), ids) for task, ids in training.items()]
        return StoredVectors([(s, np.intersect1d(ids, s.ids)) for s, ids in shards if s is not None])
