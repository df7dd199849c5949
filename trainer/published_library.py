"""Read the published releases and shards that a new task builds on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from index.errors import ShardStoreError
from index.files.manifest_format import Manifest
from index.files.store_folder import VerifiedFolders
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from index.shards.vector_store import SearchableShard
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import read_query_release, read_video_release
from models.encoders.video_encoder import VideoEncoder
from models.releases.release_files import read_fold, read_lineage, read_release
from models.releases.release_state import MeasuredFold, ParentRelease, ReleaseState
from models.routing.routing_profiles import profile_row
from trainer.errors import LibraryDamaged
from trainer.task_data import StoredVectors

_releases = VerifiedFolders()  # shared by all tasks of the process


class Library:
    """A snapshot of the published library, for training.

    Args:
        read_captions: Reads the training captions of a task that has no routing profile; None if all have one.
    """

    def __init__(
        self, store: ShardStore, read_captions: Callable[[str], Sequence[str]] | None = None
    ) -> None:
        self.store = store
        self._read_captions = read_captions
        self._snapshot = IndexSnapshot.open(store, verify=False)
        self._folders: dict[str, Path] = {}
        self._releases: dict[str, ReleaseState] = {}
        self._pinned: dict[str, ReleaseState] = {}

    @property
    def manifest(self) -> Manifest:
        """Manifest of the snapshot."""
        return self._snapshot.manifest

    @property
    def degraded(self) -> dict[str, str]:
        """Why each unreadable shard cannot be read, by task ID; learning continues without these shards."""
        return self._snapshot.degraded

    def release(self, identifier: str) -> ReleaseState:
        """Read a release, once.

        Raises:
            LibraryDamaged: Its files, or those of a release that it extends, differ from the published ones.
            ReleaseError: A file of the release has an unknown format.
        """
        if identifier not in self._releases:
            state = read_release(
                self._folder(identifier), read_parent=lambda parent: read_lineage(self._folder(parent))
            )
            if state.uncounted and self._read_captions:
                factor = float(state.config.get("word_evidence", 1.0))  # of the analytic method
                rows = {
                    row: profile_row(self._read_captions(task.task_id), factor)
                    for row, task in enumerate(state.tasks)
                    if task.task_id in state.uncounted
                }
                state = replace(state, profiles=state.profiles.replace_rows(rows))
            self._releases[identifier] = state
        return self._releases[identifier]

    @cached_property
    def current(self) -> ReleaseState | None:
        """The newest release; None before the first task."""
        return self.release(self.manifest.release) if self.manifest.release else None

    def parent_release(self, state: ReleaseState) -> ParentRelease | None:
        """Reference the newest release if ``state`` extends it; otherwise None."""
        identifier, tasks = self.manifest.release, self.current.tasks if self.current else []
        extends_newest = len(state.tasks) > len(tasks) > 0 and state.tasks[: len(tasks)] == tasks
        return ParentRelease(identifier, len(tasks)) if identifier and extends_newest else None

    def pinned_releases(self) -> dict[str, ReleaseState]:
        """Read the releases that shards pin, for encoding queries, by task ID; without routing profiles."""
        for shard in self.manifest.shards.values():
            if shard.release not in self._pinned:
                folder = self._folder(shard.release)
                self._pinned[shard.release] = read_query_release(folder, profiles=False)
        return {task: self._pinned[shard.release] for task, shard in self.manifest.shards.items()}

    def fold(self, task: str) -> MeasuredFold | None:
        """Read the fold of the release that a task's shard pins; None without one.

        Raises:
            LibraryDamaged, ReleaseError: As in :meth:`release`.
        """
        return read_fold(self._folder(self.manifest.shards[task].release))

    def video_encoder(self, backbone: Backbone, task: str) -> Callable[[Tensor], Tensor]:
        """Open the encoder that embedded a task's shard, ``uint8 [n, M, H, W, 3]`` to ``[n, dim]``.

        Raises:
            LibraryDamaged, ReleaseError: As in :meth:`release`, or the release does not fit the backbone.
        """
        shard = self.manifest.shards[task]
        pinned = {task: read_video_release(self._folder(shard.release))}
        encoder = VideoEncoder(backbone, {task: shard.fingerprint}, pinned)
        return encoder.for_task(task)

    def _folder(self, identifier: str) -> Path:
        """Find a release's folder, and check its files against the published checksums."""
        if identifier not in self._folders:
            folder = self._snapshot.release_folder(identifier)
            if not _releases.is_intact(folder, self.manifest.releases[identifier].files):
                raise LibraryDamaged(
                    f"release {identifier[:12]} was altered or is missing: restore "
                    f"index/releases/{identifier} from a backup, then retry the task"
                )
            self._folders[identifier] = folder
        return self._folders[identifier]

    def shard(self, task: str) -> SearchableShard | None:
        """Open a task's shard; None if it is degraded."""
        if task in self.degraded:
            return None
        shard = self._snapshot.shard(task, fingerprint=self.manifest.shards[task].fingerprint)
        try:
            _ = shard.ids  # opens the files, so that an unreadable shard becomes degraded here
        except ShardStoreError as error:
            self._snapshot.mark_degraded(task, str(error))
            return None
        return shard

    def stored_vectors(self, training: Mapping[str, npt.NDArray[np.int64]]) -> StoredVectors:
        """Open the stored vectors of the training videos ``[n]`` by task ID, without deleted videos."""
        shards = [(self.shard(task), ids) for task, ids in training.items()]
        return StoredVectors([(s, np.intersect1d(ids, s.ids)) for s, ids in shards if s is not None])
