"""Reading: one generation of the store, seen whole."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from index.errors import FingerprintMismatch, ReleaseCorrupt, ShardMissing, ShardStoreError
from index.files.durable_files import damage
from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry
from index.scanning.segment import require_whole
from index.shard_store import ShardStore
from index.shards.searchable_shard import SearchableShard

__all__ = ["IndexSnapshot"]


class IndexSnapshot:
    """A view of one manifest generation, which stays as it is for as long as its files do.

    Attributes:
        manifest: what it shows.
        degraded: task → why its shard cannot be searched. The other shards are served.
    """

    def __init__(
        self,
        store: ShardStore,
        manifest: Manifest,
        shards: dict[str, SearchableShard],
        degraded: dict[str, str],
        compared: set[str],
        *,
        verify: bool,
    ) -> None:
        self.manifest = manifest
        self.degraded = degraded
        self._store = store
        self._shards = shards
        self._verify = verify
        self._compared = (
            compared  # ids of folders of which every byte was compared, here or in an earlier snapshot
        )

    @classmethod
    def open(
        cls,
        store: ShardStore,
        *,
        verify: bool = True,
        previous: IndexSnapshot | None = None,
        max_verified_bytes: int | None = None,
    ) -> IndexSnapshot:
        """See the current manifest, and set aside the shards that are not what it says.

        Args:
            verify: read every byte of shards that are new here, compare checksums, and open them once; otherwise
                only sizes are looked at, and a shard is opened when something is asked of it.
            previous: shards that it has are taken over, for they cannot have changed: what a new generation
                costs does not grow with the number of tasks.
            max_verified_bytes: where there is no previous snapshot, how many bytes of shards to read, the newest first; the others
                are left :attr:`unread`, for a large library takes minutes. All by default.

        Raises:
            ManifestError: the manifest itself cannot be trusted.
        """
        manifest = store.manifest()
        compared: set[str] = previous._compared if previous else set()
        later = (
            _later(manifest, max_verified_bytes)
            if verify and previous is None and max_verified_bytes is not None
            else set()
        )
        shards: dict[str, SearchableShard] = {}
        degraded: dict[str, str] = {}
        for task in manifest.shards:
            known = previous._shards.get(task) if previous else None
            same = previous is not None and previous.manifest.tombstones.get(task) == manifest.tombstones.get(
                task
            )
            if known is not None and same and known.segments == manifest.segments(task):
                shards[task] = known
                continue
            try:
                deleted = store.tombstones(manifest, task)
                for entry in manifest.segments(task):
                    if known is None or entry not in known.segments:
                        now = verify and entry.id not in later
                        require_whole(store.shard_folder(entry.id), entry, verify=now)
                        if now:
                            compared.add(entry.id)
                        # A server tells of all at once, whereas files are opened one by one.
                        if now or (verify and entry.place):
                            store.check(entry, "there")
                shards[task] = store.open(manifest.segments(task), deleted)
            except ShardStoreError as error:
                degraded[task] = str(error)
        store.segment_cache.keep(manifest.folder_ids())
        return cls(store, manifest, shards, degraded, compared, verify=verify)

    @property
    def generation(self) -> int:
        return self.manifest.generation

    @property
    def release_id(self) -> str | None:
        return self.manifest.release

    @property
    def tasks(self) -> list[str]:
        """Tasks whose shards can be searched, in the order of their publication."""
        return list(self._shards)

    @property
    def unverified_segments(self) -> list[SegmentEntry]:
        """Segments that are served and whose bytes were not compared with their checksums yet, the newest first."""
        entries = [part for shard in list(self._shards.values()) for part in shard.segments]
        return [entry for entry in reversed(entries) if entry.id not in self._compared]

    def verify_segment(self, entry: SegmentEntry) -> None:
        """Read every byte of a segment and compare its checksums.

        Raises:
            ShardMissing, ShardCorrupt: it is not as it was written.
        """
        require_whole(self._store.shard_folder(entry.id), entry, verify=True)
        self._compared.add(entry.id)

    def mark_degraded(self, task: str, reason: str) -> None:
        """Do without a shard that could not be opened when it was needed. The next snapshot looks at it anew."""
        self.degraded[task] = reason
        self._shards.pop(task, None)

    def release_folder(self, release: str, *, files: Collection[str] = ()) -> Path:
        """Folder of a release of this generation. Its files are compared with their checksums when it is first asked
        for, here or in a previous snapshot, and their sizes always.

        Args:
            files: all that will be read of it, where it has them: of the others nothing is looked at. The whole
                release by default.

        Raises:
            ReleaseCorrupt: it is not in the manifest, or a file is missing or was altered.
        """
        entry: ReleaseEntry | None = self.manifest.releases.get(release)
        if entry is None:
            raise ReleaseCorrupt(f"release {release[:12]} is not in the manifest")
        folder = self._store.release_folder(entry.id)
        verify = self._verify and release not in self._compared
        part = {name: entry.files[name] for name in files if name in entry.files}
        if files and len(part) == len(files):
            problem = damage(folder, part, None, verify=verify)
        else:
            files, problem = (), damage(folder, entry.files, entry.bytes, verify=verify)
        if problem:
            raise ReleaseCorrupt(f"release {release[:12]}: {problem}; restore it from a backup")
        if verify and not files:
            self._compared.add(release)
        return folder

    def shard(self, task: str, *, fingerprint: str) -> SearchableShard:
        """A task's shard, for queries that were made for this encoder.

        Raises:
            FingerprintMismatch: the shard was made by another encoder.
            ShardMissing: the task has no shard, or a broken one.
        """
        if task not in self._shards:
            raise ShardMissing(self.degraded.get(task, f"task {task} has no shard"))
        shard = self._shards[task]
        if shard.entry.fingerprint != fingerprint:
            raise FingerprintMismatch(
                f"the shard of task {task} was made by encoder {shard.entry.fingerprint[:12]}, "
                f"the query is for {fingerprint[:12]}; restore the index as a whole from one backup"
            )
        return shard


def _later(manifest: Manifest, max_verified_bytes: int) -> set[str]:
    """Ids of the segments that are beyond the first bytes to read, the newest read first."""
    later: set[str] = set()
    for task in reversed(manifest.shards):
        for part in manifest.segments(task):
            max_verified_bytes -= part.bytes
            if max_verified_bytes < 0:
                later.add(part.id)
    return later
