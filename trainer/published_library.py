"""Read the published releases and shards that a new task builds on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from index.errors import ShardStoreError
from index.files.manifest_format import Manifest, ReleaseEntry
from index.files.store_folder import VerifiedFolders
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from index.shards.vector_store import SearchableShard
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import read_query_release, read_video_release
from models.encoders.video_encoder import VideoEncoder
from models.releases.release_files import read_fold, read_lineage, read_release, with_training_state
from models.releases.release_state import (
    Lineage,
    MeasuredFold,
    ParentRelease,
    ReleaseState,
    ReleaseTask,
    TaskLineage,
    find_lineages,
)
from models.routing.routing_profiles import profile_row
from trainer.errors import LibraryDamaged
from trainer.task_data import StoredVectors

_releases = VerifiedFolders()  # shared by all tasks of the process


class Library:
    """A snapshot of the published library; ``read_captions`` gets those of a task without a routing profile."""

    def __init__(
        self, store: ShardStore, read_captions: Callable[[str], Sequence[str]] | None = None
    ) -> None:
        self.store = store
        self._read_captions = read_captions
        self._snapshot = IndexSnapshot.open(store, verify=False)
        self._folders: dict[str, Path] = {}
        self._releases: dict[str, ReleaseState] = {}
        self._contributions: dict[str, TaskLineage] = {}
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
        """Read a release, once; raise LibraryDamaged if its files, or those of a release that it extends, differ from
        the published ones, and ReleaseError if a file has an unknown format.
        """
        if identifier not in self._releases:
            state = read_release(self._folder(identifier), read_parent=self._contribution)
            if (entry := self.manifest.training.get(identifier)) is not None:
                state = with_training_state(state, self._checked(self.store.release_folder(entry.id), entry))
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

    def description(self, identifier: str) -> ReleaseState:
        """Read a release without tensors, routing profiles and ancestors; errors as in :meth:`release`."""
        return read_release(self._folder(identifier), tensor_prefixes=lambda kind: (), profiles=False)

    @cached_property
    def lineages(self) -> list[Lineage]:
        """The lineages of the releases, that of the newest one first; errors as in :meth:`release`."""
        return find_lineages(self.manifest.releases, self._contribution)

    @cached_property
    def uncounted(self) -> frozenset[str]:
        """Tasks whose profile is counted again, see :class:`~models.releases.release_state.TaskLineage`."""
        parts = map(self._contribution, self.manifest.releases)
        return frozenset[str]().union(*(part.uncounted for part in parts))

    def newest_release(self, *, domain: str) -> str:
        """Find the newest release of a domain's lineage."""
        pinned = self.manifest.shards[domain].release
        return next(lineage.releases[0] for lineage in self.lineages if pinned in lineage.releases)

    def continued_release(self, tasks: Sequence[ReleaseTask]) -> str | None:
        """Find the newest release of the lineage with exactly these tasks, which a next task continues."""
        return next((each.releases[0] for each in self.lineages if each.tasks == tuple(tasks)), None)

    def parent_release(self, state: ReleaseState) -> ParentRelease | None:
        """Reference the release that ``state`` continues with one task; None if it starts a lineage."""
        identifier = self.continued_release(state.tasks[:-1])
        return ParentRelease(identifier, len(state.tasks) - 1) if identifier else None

    def outdated_releases(self, state: ReleaseState) -> list[str]:
        """List the releases that are none of the two newest of a lineage once ``state`` is published."""
        parent = self.parent_release(state)
        continued = parent and parent.release
        outdated: set[str] = set()
        for newest, *older in (lineage.releases for lineage in self.lineages):
            outdated |= set(older[0 if newest == continued else 1 :])
        return sorted(outdated)

    def serves(self, task: ReleaseTask) -> bool:
        """Check whether a task's shard is the one that a release has learned; an upgrade replaces it by another."""
        shard = self.manifest.shards.get(task.task_id)
        return shard is not None and shard.fingerprint == task.fingerprint

    def pinned_releases(self, tasks: Iterable[ReleaseTask]) -> dict[str, ReleaseState]:
        """Read the releases that the shards of some tasks pin, for encoding queries, by task ID; without profiles."""
        pinned: dict[str, ReleaseState] = {}
        for task in tasks:
            if (shard := self.manifest.shards.get(task.task_id)) is not None:
                if shard.release not in self._pinned:
                    folder = self._folder(shard.release)
                    self._pinned[shard.release] = read_query_release(folder, profiles=False)
                pinned[task.task_id] = self._pinned[shard.release]
        return pinned

    def fold(self, task: str) -> MeasuredFold | None:
        """Read the fold of the release that a task's shard pins, None without one; errors as in :meth:`release`."""
        return read_fold(self._folder(self.manifest.shards[task].release))

    def video_encoder(self, backbone: Backbone, task: str) -> Callable[[Tensor], Tensor]:
        """Open the encoder of a task's shard, ``uint8 [n, M, H, W, 3]`` to ``[n, dim]``; errors as in :meth:`release`,
        and ReleaseError if it does not fit the backbone.
        """
        shard = self.manifest.shards[task]
        pinned = {task: read_video_release(self._folder(shard.release))}
        encoder = VideoEncoder(backbone, {task: shard.fingerprint}, pinned)
        return encoder.for_task(task)

    def _contribution(self, identifier: str) -> TaskLineage:
        """Read what a release added, once."""
        if identifier not in self._contributions:
            self._contributions[identifier] = read_lineage(self._folder(identifier))
        return self._contributions[identifier]

    def _folder(self, identifier: str) -> Path:
        """Find a release's folder, and check its files against the published checksums."""
        if identifier not in self._folders:
            folder = self._snapshot.release_folder(identifier)
            self._folders[identifier] = self._checked(folder, self.manifest.releases[identifier])
        return self._folders[identifier]

    def _checked(self, folder: Path, entry: ReleaseEntry) -> Path:
        if not _releases.is_intact(folder, entry.files):
            raise LibraryDamaged(
                f"release {entry.id[:12]} was altered or is missing: restore "
                f"index/releases/{entry.id} from a backup, then retry the task"
            )
        return folder

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
