"""Write and publish shards and releases."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from index.arrays import Ids, Vectors, batches, video_ids_of
from index.errors import ReleaseCorrupt, ShardInvalid, ShardMissing, ShardStoreError
from index.files.durable_files import find_damage, sync
from index.files.manifest_format import Manifest, ReleaseEntry, ReplacedShard, SegmentEntry, TombstoneEntry
from index.files.segment_files import DESCRIPTION, TOMBSTONES, require_intact
from index.scanning.exact_scan import is_gpu_used
from index.shard_segments import (
    BATCH_ROWS,
    PublishValidator,
    ShardReader,
    ShardWriter,
    new_entry,
    sorted_rows,
)
from index.shards.faiss_vector_store import FaissVectorStore, SegmentCache
from index.shards.vector_store import VectorStore
from index.store_options import AnnPolicy, Device

_MIN_AGE_SECONDS = 3600  # readers and writers may still use younger folders


class ShardStore(ShardReader):
    """A folder of shards and releases. One process writes (the learning worker), any number read."""

    def __init__(
        self,
        root: Path,
        *,
        policy: AnnPolicy | None = None,
        read_queries: Callable[[Path], Vectors | None] = lambda release: None,
        device: Device = "cpu",
        remote: VectorStore | None = None,
        write_remote: bool = False,
    ) -> None:
        """Create a store in a folder, which is created by the first write; raises DeviceMissing.

        Args:
            read_queries: Reads queries from a release's folder, to measure shards that were smaller until now.
            device: Device that searches; ``auto`` takes a GPU if there is one.
            remote: Store for rows outside their segment's folder.
            write_remote: Whether the rows of new tasks go to ``remote`` instead of the segment folders. Existing shards
                stay where they are until they are moved.
        """
        self.policy = policy or AnnPolicy()  # which new segments get an ANN structure
        self.segment_cache = SegmentCache(gpu=is_gpu_used(device))
        super().__init__(root, FaissVectorStore(self.segment_cache, lambda: self.policy), remote)
        self._new_tasks: VectorStore = remote if remote is not None and write_remote else self._local
        self._writer = ShardWriter(self, read_queries)
        self._validator = PublishValidator(self)

    # -- writing; nothing becomes visible --

    def write_shard(
        self,
        *,
        task: str,
        release: str,
        fingerprint: str,
        ids: Ids,
        vectors: Vectors,
        queries: Vectors | None = None,
        heartbeat: Callable[[], object] = lambda: None,
    ) -> SegmentEntry:
        """Write a segment of a task's shard durably. It stays invisible until published.

        Args:
            release: ID of the release that made the vectors.
            fingerprint: Fingerprint of its video encoder.
            ids: ``int64 [n]``, non-negative and distinct; ShardInvalid is raised for others.
            vectors: ``float32 [n, dim]``, rows of unit length; stored in half precision.
            queries: ``float32 [m, dim]``, vectors of captions that were not learned. They measure an ANN structure, if
                the segment is large enough for one (:mod:`index.scanning.ann_index`); None means always exact.
            heartbeat: Called repeatedly while a structure is built, which takes minutes.
        """
        # A task has all its segments in the same store.
        published = self.manifest().shards.get(task) if self.remote is not None else None
        vector_store = self._vector_store_of(published) if published and published.count else self._new_tasks
        ids, vectors = sorted_rows(task, ids, vectors)
        entry = new_entry(task, release, fingerprint, vectors.shape[1])
        return self._writer.write(
            vector_store,
            entry,
            ids=ids,
            rows=lambda: batches(vectors, BATCH_ROWS),
            queries=queries,
            heartbeat=heartbeat,
        )

    def adopt_release(self, staged: Path) -> ReleaseEntry:
        """Seal a staged folder of plain files as a release, which stays invisible until published.

        Raises ShardInvalid if the folder is empty, or contains something other than plain files.
        """
        odd = [path.name for path in staged.iterdir() if path.is_symlink() or not path.is_file()]
        if odd or not any(staged.iterdir()):
            raise ShardInvalid(
                f"a release must be a folder of plain files, but this one has {', '.join(odd) or 'no file'}"
            )
        return ReleaseEntry(*self.seal(staged, self.releases_path))

    # -- publishing --

    def publish(
        self,
        *,
        release: ReleaseEntry,
        shards: Sequence[SegmentEntry],
        segments: Sequence[SegmentEntry] = (),
        deleted: Iterable[int] = (),
        replaced: tuple[str, Sequence[int]] | None = None,
        upgrades: bool = False,
        partial: bool = False,
        training: ReleaseEntry | None = None,
        outdated: Collection[str] = (),
        before_replace: Callable[[], object] = lambda: None,
    ) -> Manifest:
        """Make a release the newest, and shards visible with it. This is the publish point of the whole store.

        While an earlier release is pinned, searches use the published one only once it is served (:meth:`serve`).
        Publishing the same shards again changes nothing, so a killed writer may repeat it, and a late writer cannot
        make an old release the newest again.

        Args:
            shards: First segments of new shards.
            segments: Additional segments of these shards.
            deleted: IDs that were deleted while the shards were made; no generation ever shows them.
            replaced: A published task, and IDs that the same generation deletes from its shard, because the new shards
                have vectors of these videos.
            upgrades: Whether the shards take the place of those that their tasks have. These are kept, so that
                :meth:`undo_upgrade` can restore them; one that an earlier upgrade replaced is dropped.
            partial: Whether videos that an upgrade's shard lacks, and ``deleted`` does not name, stay where they are.
            training: Folder of what only training needs of the release.
            outdated: IDs of releases that lose such a folder, unless they are served.
            before_replace: Called under the write lock just before the manifest is replaced; if it raises, nothing is
                published.

        Raises:
            ShardInvalid: A shard conflicts with a published one (same task, same IDs, other dimension), or is not in
                the store as it was written.
            ManifestError: The current manifest cannot be trusted.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with self.write_lock():
            current = self.manifest()
            new = [shard for shard in shards if current.shards.get(shard.task) != shard]
            if not new and release.id in current.releases:
                sync(self.root)  # the process that published it may have died before its own sync
                return current
            for written in (release, training) if training else (release,):
                self._validator.require_release(written)
            # The same upgrade again, after it was undone, has the same release, which others may continue.
            newest = current.release if release.id in current.releases else release.id
            manifest = replace(current, release=newest, releases={**current.releases, release.id: release})
            states = {
                key: state
                for key, state in current.training.items()
                if key not in outdated or key == manifest.served
            }
            manifest = replace(manifest, training={**states, release.id: training} if training else states)
            deleted_ids = np.unique(np.fromiter(deleted, np.int64))
            for shard in new:
                parts = {
                    key: ReplacedShard(manifest.segments(key), manifest.tombstones.get(key))
                    for key in manifest.keys_of(shard.task)
                }
                self._validator.require_new_shard(
                    shard, manifest.without(shard.task) if upgrades else manifest
                )
                manifest = manifest.with_new_shard(shard)
                if upgrades:
                    old = replace(parts.pop(shard.task), parts=dict(parts))
                    manifest = replace(manifest, replaced={**manifest.replaced, shard.task: old})
                    parts[f"{shard.task}~{old.segments[0].id[:12]}"] = replace(old, parts={})
                for segment in segments:
                    if segment.task == shard.task:
                        manifest = self._with_segment(segment, manifest)
                if partial:
                    manifest = self._with_remaining(manifest, shard.task, parts, deleted_ids)
            for shard in new if len(deleted_ids) else ():
                present = self._present_ids(manifest, shard.task, deleted_ids)
                if len(present):
                    manifest = self._with_tombstones(manifest, shard.task, present)
            if replaced is not None:
                task, ids = replaced
                manifest = self._without_videos(manifest, task, np.array(ids, np.int64))
            before_replace()
            return self.replace_manifest(current, manifest)

    def undo_upgrade(self, task: str, deleted: Iterable[int] = ()) -> Manifest:
        """Restore the shard that a task had before its latest upgrade, without the IDs that were deleted since.

        Raises ShardMissing if no upgrade of the task can be undone.
        """
        with self.write_lock():
            current = self.manifest()
            if (previous := current.replaced.get(task)) is None:
                raise ShardMissing(f"task {task} has no upgrade that can be undone")
            changed = current.with_new_shard(previous.segments[0])
            for key, shard in {task: previous, **previous.parts}.items():
                for entry in shard.segments:
                    self._validator.require_intact(f"shard {entry.id[:12]}", entry)
                changed = changed.with_shard(key, shard)
            changed = self._without_videos(changed, task, np.fromiter(deleted, np.int64))
            return self.replace_manifest(current, changed)

    def accept_upgrade(self, task: str) -> Manifest:
        """Drop the shard that a task had before its latest upgrade, if it is still kept."""
        with self.write_lock():
            current = self.manifest()
            if task not in current.replaced:
                return current
            others = {key: shard for key, shard in current.replaced.items() if key != task}
            return self.replace_manifest(current, replace(current, replaced=others))

    def serve(self, release: str | None) -> Manifest:
        """Let searches use a published release (None: the newest), and no later one until another release is served.

        Shards, tombstones and releases stay as they are. A later publication becomes the newest release, which the next
        task continues, but is not served. Serving the newest release ends this: searches follow publications again.

        Raises ReleaseCorrupt if the release is not in the manifest, or one of its files is missing or was altered.
        """
        with self.write_lock():
            current = self.manifest()
            release = release or current.release or ""
            entry = current.releases.get(release)
            if entry is None:
                raise ReleaseCorrupt(f"release {release[:12]} is not in the manifest")
            problem = find_damage(self.release_folder(release), entry.files, entry.bytes, verify=True)
            if problem:
                raise ReleaseCorrupt(f"release {release[:12]}: {problem}; restore it from a backup")
            pinned = None if release == current.release else release
            if pinned == current.pinned:
                return current
            return self.replace_manifest(current, replace(current, pinned=pinned))

    def append(
        self,
        *segments: SegmentEntry,
        deleted: Mapping[str, Sequence[int]] = MappingProxyType({}),
        before_replace: Callable[[], object] = lambda: None,
    ) -> Manifest:
        """Append segments to the shards of published tasks; all of them become visible together.

        Appending a published segment again changes nothing.

        Args:
            deleted: IDs by published task that the same generation deletes from its shard, so that no generation shows
                videos that were deleted or replaced while the segments were made. Other IDs are ignored.
            before_replace: As for :meth:`publish`.

        Raises:
            ShardInvalid: A segment's task is not published, another release made the segment, the shard has one of its
                IDs, or the segment is not in the store as it was written.
        """
        with self.write_lock():
            current = changed = self.manifest()
            for segment in segments:
                if segment.task not in current.shards or segment not in current.segments(segment.task):
                    changed = self._with_segment(segment, changed)
            for task, ids in deleted.items():
                changed = self._without_videos(changed, task, np.array(ids, np.int64))
            if changed is current:
                return current
            before_replace()
            return self.replace_manifest(current, changed)

    def delete(
        self,
        ids: Iterable[int],
        *,
        task: str | None = None,
        before_replace: Callable[[], object] = lambda: None,
    ) -> Manifest:
        """Delete vectors: no later search returns them. Their rows stay until the task is compacted.

        Deleting a video deletes its moments. Deleting an ID again changes nothing.

        Args:
            task: The only task to delete from. IDs that it does not have are then ignored: a video that was never
                embedded, or whose task is not published, has no vector. Without it, raises ShardMissing, and deletes
                nothing, if no task has one of the IDs.
        """
        wanted = np.unique(np.fromiter(ids, np.int64))
        with self.write_lock():
            current = changed = self.manifest()
            unknown = wanted
            for name in current.shards if task is None else current.keys_of(task):
                present = self._present_ids(current, name, wanted)
                unknown = np.setdiff1d(unknown, present, assume_unique=True)
                changed = self._without_ids(changed, name, present)
            if len(unknown) and task is None:
                raise ShardMissing(f"no task has vector {int(unknown[0])}")
            if changed is current:
                return current
            before_replace()
            return self.replace_manifest(current, changed)

    def compact(self, task: str) -> Manifest:
        """Copy a task's undeleted vectors into one new segment, without embedding anything again.

        Vectors are copied bit by bit, so every search returns the same results. Other writers wait. If all vectors are
        deleted, nothing is read, and an empty shard replaces the segments until something is appended. Raises
        ShardMissing if the task is not published, or one of its files is missing.
        """
        with self.write_lock():
            current = self._require_published(task)
            for key in current.keys_of(task):
                if len(current.segments(key)) > 1 or key in current.tombstones:
                    current = self._rewrite(current, key)
            return current

    def clear(self, task: str) -> Manifest:
        """Delete all vectors of a task and empty its shard, even if its files are damaged.

        A task that is not published stays as it is.
        """
        with self.write_lock():
            current = self.manifest()
            is_whole = current.keys_of(task) in ([], [task]) and task not in current.replaced
            if is_whole and not (task in current.shards and current.shards[task].count):
                return current
            empty = self._writer.write_empty(current.shards[task], self._empty)
            self._validator.require_intact(f"shard {empty.id[:12]}", empty)
            return self.replace_manifest(current, current.with_new_shard(empty))

    def move(self, task: str) -> Manifest:
        """Copy a task's undeleted vectors to the store of new tasks, without embedding anything again.

        A shard that is already there stays as it is. Vectors are copied bit by bit. If all vectors are deleted, the
        task gets an empty shard. Raises as :meth:`compact`, and StoreUnavailable.
        """
        with self.write_lock():
            current = self._require_published(task)
            for key in current.keys_of(task):
                if self._vector_store_of(current.shards[key]) not in (self._new_tasks, self._empty):
                    current = self._rewrite(current, key, self._new_tasks)
            return current

    def collect_garbage(self, timeout: float | None = None) -> None:
        """Remove folders that writers left behind, with their rows in the remote store.

        These are staged folders, and sealed ones that the manifest does not name, once they are an hour old. Nothing is
        removed without a manifest, because a lost manifest may be restored from a backup. Raises TimeoutError if
        another writer holds the write lock for ``timeout`` seconds; nothing was removed.
        """
        if not self.manifest_path.exists():
            return
        with self.write_lock(timeout):
            referenced = self.manifest().folder_ids() | self.word_folders()
            latest = time.time() - _MIN_AGE_SECONDS
            for folder in self.folders():
                if (
                    folder.name not in referenced
                    and _modified_before(folder, latest)
                    and self._drop_rows(folder)
                ):
                    shutil.rmtree(folder, ignore_errors=True)

    # -- internal; callers hold the write lock --

    def _require_published(self, task: str) -> Manifest:
        manifest = self.manifest()
        if task not in manifest.shards:
            raise ShardMissing(f"task {task} has no shard")
        return manifest

    def _drop_rows(self, folder: Path) -> bool:
        """Remove a folder's remote rows; False if that failed and the folder must stay for the next attempt."""
        try:
            place = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")).get("place", "")
        except (OSError, ValueError, AttributeError):
            return True  # not a segment, or one that was never sealed
        if not place:
            return True
        try:
            if self.remote is None:
                return False
            self.remote.drop(folder.name, place)
        except ShardStoreError:
            return False
        return True

    def _present_ids(self, manifest: Manifest, task: str, ids: Ids) -> Ids:
        """Select the IDs that a shard has, and the moments of those videos; ``int64``, ascending."""
        stored = np.concatenate([self.segment_ids(entry) for entry in manifest.segments(task)])
        return np.unique(stored[np.isin(stored, ids) | np.isin(video_ids_of(stored), ids)])

    def _with_segment(self, segment: SegmentEntry, manifest: Manifest) -> Manifest:
        """Append a segment to the manifest; raises ShardInvalid."""
        self._validator.require_appendable(segment, manifest)
        first, *appended = manifest.segments(segment.task)
        if not first.count:
            return replace(manifest, shards={**manifest.shards, segment.task: segment})
        return replace(manifest, appended={**manifest.appended, segment.task: (*appended, segment)})

    def _with_tombstones(self, manifest: Manifest, task: str, ids: Ids) -> Manifest:
        """Record these IDs in the manifest as all that are deleted from a task."""
        with self.staging() as staged:
            np.save(staged / TOMBSTONES, ids, allow_pickle=False)
            sealed = self.seal(staged, self.tombstones_path)
        entry = TombstoneEntry(sealed.id, task, len(ids), sealed.bytes, sealed.files)
        return replace(manifest, tombstones={**manifest.tombstones, task: entry})

    def _without_ids(self, manifest: Manifest, task: str, present: Ids) -> Manifest:
        """Add IDs, which the task's shard has, to its deleted ones in the manifest."""
        before = self.tombstones(manifest, task)
        after = np.union1d(before, present)
        return self._with_tombstones(manifest, task, after) if len(after) > len(before) else manifest

    def _without_videos(self, manifest: Manifest, task: str, ids: Ids) -> Manifest:
        """Add those of the IDs that a task's shards have, and their moments, to the deleted ones in the manifest."""
        for key in manifest.keys_of(task):
            manifest = self._without_ids(manifest, key, self._present_ids(manifest, key, ids))
        return manifest

    def _with_remaining(
        self, manifest: Manifest, task: str, parts: Mapping[str, ReplacedShard], deleted: Ids
    ) -> Manifest:
        """Keep what an upgraded task's new shard lacks of its previous ones, which are given by their new key."""
        moved = np.concatenate([self.segment_ids(entry) for entry in manifest.segments(task)])
        gone = np.union1d(video_ids_of(moved), deleted)
        for key, part in parts.items():
            restored = manifest.with_shard(key, part)
            restored = self._without_ids(restored, key, self._present_ids(restored, key, gone))
            if restored.live_count(key):
                manifest = restored
        return manifest

    def _rewrite(self, current: Manifest, key: str, target: VectorStore | None = None) -> Manifest:
        """Replace one of a task's shards by a copy without deleted vectors."""
        segments = current.segments(key)
        if not current.live_count(key):
            if key != segments[0].task:
                return self.replace_manifest(current, current.without_shard(key))
            return self._replace_shard(current, key, self._writer.write_empty(segments[0], self._empty))
        deleted = self.tombstones(current, key)
        target = target or self._vector_store_of(segments[0])
        for entry in segments:
            require_intact(self.shard_folder(entry.id), entry, verify=True)
            self.check(entry, "bytes")
        shard = self.open(segments, deleted)
        return self._replace_shard(current, key, self._writer.copy(shard, target))

    def _replace_shard(self, current: Manifest, key: str, shard: SegmentEntry) -> Manifest:
        """Publish a shard that replaces all segments and tombstones of a key."""
        self._validator.require_intact(f"shard {shard.id[:12]}", shard)
        changed = replace(current.without_shard(key), shards={**current.shards, key: shard})
        return self.replace_manifest(current, changed)


def _modified_before(folder: Path, timestamp: float) -> bool:
    """Check whether a folder is older than a timestamp; False if a writer has renamed it since it was listed."""
    try:
        return folder.stat().st_mtime < timestamp
    except FileNotFoundError:
        return False
