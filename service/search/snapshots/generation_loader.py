"""Load the newest generation as a snapshot, or an earlier release if the newest one is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import structlog
from sqlalchemy import select

from index.arrays import Ids
from index.errors import ManifestError, ShardStoreError
from index.index_snapshot import IndexSnapshot
from models.backbones.query_backbone import QueryBackbone
from models.encoders.encoder_registry import check_device, load_query_backbone
from models.errors import BackboneUnavailable, ModelError
from models.releases.release_state import ReleaseState
from service.catalog.database import id_chunks, ping, session_scope
from service.catalog.tables import Task
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.search.snapshots.query_vector_cache import EncoderMemory
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.snapshot_loading import load_snapshot
from service.storage.index_manifest import library_store, require_manifest
from service.storage.library_backbone import served_backbone

log = structlog.get_logger(__name__)

# The shards of a library up to this size are verified before readiness, those of a larger one afterwards.
BYTES_BEFORE_READY = 256 * 1024**2

_MAX_EARLIER_RELEASES = 3  # earlier releases tried at start-up if the newest is refused


class GenerationLoader:
    """Loads backbones once, and index generations as snapshots.

    Attributes:
        backbones: The loaded backbones, by name.
        memory: Bounds the memory of query encoders, and reloads evicted ones.
    """

    def __init__(self, settings: Settings) -> None:
        self.backbones: WeakValueDictionary[str, QueryBackbone] = WeakValueDictionary()
        self._first: QueryBackbone | None = None  # kept alive until a snapshot refers to it
        self.memory = EncoderMemory(_memory_limit() // 4)
        self._settings = settings
        self._store = library_store(settings, device=settings.index_device)
        try:
            check_device(settings.query_device)
        except ModelError as error:
            raise ModelError(f"CINESTRATA_QUERY_DEVICE: {error}") from error

    def stamp(self) -> tuple[int, int, int] | None:
        """Read the manifest's file stamp, which changes whenever the manifest is replaced."""
        try:
            stat = self._store.manifest_path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def load_newest(self, previous: SearchSnapshot | None) -> SearchSnapshot | None:
        """Load the newest generation and the release that it serves, sharing memory with the previous snapshot.

        None if that snapshot is up to date or nothing is published yet. Raises Unavailable if the catalog cannot be
        read; a broken release may raise anything.
        """
        is_empty = self.stamp() is None
        if not self.backbones:
            with nullcontext() if is_empty else suppress(BackboneUnavailable):  # other lineages may be served
                self._first = self._load_backbone(served_backbone(self._settings))
        if not is_empty:
            ping()  # a snapshot needs the catalog; don't reread files repeatedly while it is unreachable
        index_snapshot = IndexSnapshot.open(
            self._store,
            previous=previous.index_snapshot if previous else None,
            max_verified_bytes=BYTES_BEFORE_READY,
        )
        if previous is None:
            if index_snapshot.manifest.release is None:
                with suppress(Unavailable):  # readiness reports the catalog separately
                    require_manifest(index_snapshot.manifest)
                return None
            snapshot = load_snapshot(index_snapshot, self.backbone_of, memory=self.memory)
            self._first = None
            return snapshot
        if index_snapshot.manifest.release is None:
            raise ManifestError("manifest.json is missing; restore the file from a backup")
        if index_snapshot.manifest == previous.index_snapshot.manifest and not previous.degraded:
            return None
        fresh = load_snapshot(index_snapshot, self.backbone_of, other=previous, memory=self.memory)
        is_same = (
            fresh.index_snapshot.manifest == previous.index_snapshot.manifest
            and fresh.degraded == previous.degraded
            and fresh.shards.keys() == previous.shards.keys()
        )
        return None if is_same else fresh

    def backbone_of(self, release: ReleaseState) -> QueryBackbone:
        """Load the backbone that a release was learned on, by its name or the configured one.

        Raises BackboneUnavailable if it cannot be loaded, or has other weights.
        """
        errors: list[str] = []
        for name in dict.fromkeys(filter(None, [release.backbone, self._settings.backbone])):
            try:
                backbone = self._load_backbone(name)
            except BackboneUnavailable as error:
                errors.append(str(error))
                continue
            if backbone.fingerprint == release.backbone_fingerprint:
                return backbone
            errors.append(
                f"the release was learned on another backbone than {backbone.name!r} "
                f"(fingerprint {release.backbone_fingerprint[:12]}, loaded {backbone.fingerprint[:12]}): "
                f"start with the weights of {release.backbone!r} that it was learned with"
            )
        raise BackboneUnavailable("; ".join(errors))

    def _load_backbone(self, name: str) -> QueryBackbone:
        if (backbone := self.backbones.get(name)) is None:
            self.backbones[name] = backbone = load_query_backbone(
                name,
                self._settings.frames,
                device=self._settings.query_device,
                precision=self._settings.query_precision,
            )
        return backbone

    def read_changed_ids(self, snapshot: SearchSnapshot, tasks: Sequence[str]) -> dict[str, Ids]:
        """Read from the manifest on disk the current IDs of those tasks whose shards differ from a snapshot's."""
        manifest, before = self._store.manifest(), snapshot.index_snapshot.manifest
        if not manifest.shards:
            raise ManifestError("manifest.json is missing; restore the file from a backup")
        changed: dict[str, Ids] = {}
        for task in tasks:
            if task not in manifest.shards:
                changed[task] = np.empty(0, np.int64)
            elif not manifest.has_same_shard(task, before):
                deleted = self._store.tombstones(manifest, task)
                changed[task] = self._store.open(manifest.segments(task), deleted).ids
        return changed

    def load_earlier(self, reason: str) -> SearchSnapshot | None:
        """Load the last usable release before the served one, which is refused for a reason; None if there is none.

        Tasks that the served one added or upgraded are degraded. Raises Unavailable if the catalog cannot be read.
        """
        if not self.backbones:
            return None
        with suppress(ShardStoreError, OSError):
            index_snapshot = IndexSnapshot.open(self._store, max_verified_bytes=BYTES_BEFORE_READY)
            manifest = index_snapshot.manifest
            if manifest.served is None:
                return None
            unserved = {manifest.served, *manifest.releases_after(manifest.served)}
            earlier = [release for release in manifest.releases if release not in unserved]
            unserved.discard(manifest.served)
            for release_id in earlier[: -_MAX_EARLIER_RELEASES - 1 : -1]:
                try:
                    snapshot = load_snapshot(index_snapshot, self.backbone_of, release_id, memory=self.memory)
                except Unavailable:
                    raise
                except Exception as error:  # a broken release, or a full GPU, may raise anything
                    log.warning("earlier_release_refused", release=release_id, error=str(error))
                    continue
                later = [
                    task
                    for task, shard in manifest.shards.items()
                    if task not in snapshot.shards
                    and task not in snapshot.degraded
                    and shard.release not in unserved
                ]
                snapshot.degraded.update(dict.fromkeys(later, f"the served release is refused: {reason}"))
                names = dict(zip(later, later, strict=True))  # if the catalog cannot be read
                with suppress(Unavailable), session_scope() as session:
                    for chunk in id_chunks(later):
                        rows = session.execute(select(Task.id, Task.name).where(Task.id.in_(chunk)))
                        names |= {task: name for task, name in rows}
                return replace(snapshot, task_names={**snapshot.task_names, **names})
        return None


def _memory_limit() -> int:
    """Read how many bytes of memory the machine has, or its container."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total
