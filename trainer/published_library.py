"""Read the published releases and shards that a new task builds on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from models.encoders.encoder_registry import open_query_encoder, read_query_release, read_video_release
from models.encoders.query_encoder import QueryEncoder
from models.encoders.video_encoder import VideoEncoder
from models.releases.release_files import (
    LINEAGE_FILES,
    QUERY_FILES,
    read_fold,
    read_lineage,
    read_release,
    with_training_state,
)
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
from trainer.evaluation.gallery import WholeVideoShard
from trainer.task_data import StoredVectors

_releases = VerifiedFolders()  # shared by all tasks of the process


class ReleasesByTask(dict[str, ReleaseState]):
    """Releases that shards pin, by task ID: those ``replaced``, and others, which are read when they are looked up."""

    def __init__(self, replaced: Mapping[str, ReleaseState], read: Callable[[str], ReleaseState]) -> None:
        super().__init__(replaced)
        self.read = read

    def __missing__(self, task: str) -> ReleaseState:
        return self.read(task)


@dataclass
class LibraryCache:
    """What a process has read of a store, whose published files never change."""

    snapshot: IndexSnapshot | None = None
    contributions: dict[str, TaskLineage] = field(default_factory=dict)  # what a release adds, by ID
    # The last encoder, and the releases that it has read, by task ID.
    encoder: tuple[QueryEncoder, dict[str, str]] | None = None


class Library:
    """A snapshot of the published library; ``read_captions`` gets those of a task without a routing profile."""

    def __init__(
        self,
        store: ShardStore,
        read_captions: Callable[[str], Sequence[str]] | None = None,
        cache: LibraryCache | None = None,
    ) -> None:
        self.store = store
        self._read_captions = read_captions
        self._cache = cache or LibraryCache()
        self._snapshot = IndexSnapshot.open(store, verify=False, previous=self._cache.snapshot)
        self._cache.snapshot = self._snapshot
        self._releases: dict[str, ReleaseState] = {}
        self._whole_videos: dict[str, WholeVideoShard | None] = {}
        self._last_pinned: tuple[str, ReleaseState] | None = None

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
        folder = self._folder(identifier, QUERY_FILES)
        return read_release(folder, tensor_prefixes=lambda kind: (), profiles=False)

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

    def pinned_release(self, task: str) -> ReleaseState:
        """Read the release that a task's shard pins, for encoding queries, without profiles; raise KeyError without a
        shard.
        """
        identifier = self.manifest.shards[task].release
        if self._last_pinned is None or self._last_pinned[0] != identifier:
            folder = self._folder(identifier, QUERY_FILES)
            self._last_pinned = identifier, read_query_release(folder, profiles=False)
        return self._last_pinned[1]

    def query_encoder(
        self, backbone: Backbone, state: ReleaseState, replaced: Mapping[str, ReleaseState]
    ) -> QueryEncoder:
        """Open a release's query encoder, with other releases than the published ones for some tasks; it shares what
        the last encoder of its lineage has read. Errors as in :meth:`release`.
        """
        published = [
            task.task_id for task in state.tasks if self.serves(task) and task.task_id not in replaced
        ]
        read = {task: self.manifest.shards[task].release for task in published}
        previous, last_read = self._cache.encoder or (None, {})
        if previous is not None:
            earlier = [task.task_id for task in state.tasks[: len(previous.tasks)]]
            if (previous.backbone.fingerprint, previous.tasks) != (backbone.fingerprint, earlier):
                previous, last_read = None, {}
        unchanged = {task for task, release in read.items() if last_read.get(task) == release}
        pinned = ReleasesByTask(replaced, self.pinned_release)
        encoder = open_query_encoder(backbone, state, pinned, previous, unchanged)
        if encoder.shares_text_encoding and len(replaced) < 2:  # others keep much memory per task
            self._cache.encoder = encoder, read
        return encoder

    def record_release(self, task: str, release: str) -> None:
        """Record which release the last encoder has read for its newest task, once it is written."""
        if self._cache.encoder is not None and self._cache.encoder[0].tasks[-1] == task:
            self._cache.encoder[1][task] = release

    def fold(self, task: str) -> MeasuredFold | None:
        """Read the fold of the release that a task's shard pins, None without one; errors as in :meth:`release`."""
        return read_fold(self._folder(self.manifest.shards[task].release))

    def video_encoder(self, backbone: Backbone, task: str) -> Callable[[Tensor], Tensor]:
        """Open the encoder of a task's shard, ``uint8 [n, M, H, W, 3]`` to ``[n, dim]``; errors as in :meth:`release`,
        and ReleaseError if it does not fit the backbone.
        """
        shard = self.manifest.shards[task]
        pinned = {task: read_video_release(self._folder(shard.release, QUERY_FILES))}
        encoder = VideoEncoder(backbone, {task: shard.fingerprint}, pinned)
        return encoder.for_task(task)

    def _contribution(self, identifier: str) -> TaskLineage:
        """Read what a release added, once."""
        if identifier not in self._cache.contributions:
            self._cache.contributions[identifier] = read_lineage(self._folder(identifier, LINEAGE_FILES))
        return self._cache.contributions[identifier]

    def _folder(self, identifier: str, used: Collection[str] = ()) -> Path:
        """Find a release's folder, and check the files that are used, or all, against the published checksums."""
        folder = self._snapshot.release_folder(identifier)
        return self._checked(folder, self.manifest.releases[identifier], used)

    def _checked(self, folder: Path, entry: ReleaseEntry, used: Collection[str] = ()) -> Path:
        if not _releases.is_intact(folder, entry.files, used):
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

    def whole_videos(self, task: str) -> WholeVideoShard | None:
        """Open a task's shard without moments, once; None if it is degraded."""
        if task not in self._whole_videos:
            shard = self.shard(task)
            self._whole_videos[task] = None if shard is None else WholeVideoShard(shard)
        return self._whole_videos[task]

    def stored_vectors(self, training: Mapping[str, npt.NDArray[np.int64]]) -> StoredVectors:
        """Open the stored vectors of the training videos ``[n]`` by task ID, without deleted videos."""
        shards = [(self.shard(task), ids) for task, ids in training.items()]
        return StoredVectors([(s, np.intersect1d(ids, s.ids)) for s, ids in shards if s is not None])
