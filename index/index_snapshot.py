"""A consistent view of one store generation."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from index.errors import FingerprintMismatch, ReleaseCorrupt, ShardMissing, ShardStoreError
from index.files.durable_files import find_damage
from index.files.manifest_format import Manifest, SegmentEntry
from index.files.segment_files import require_intact
from index.shard_store import ShardStore
from index.shards.vector_store import SearchableShard


class IndexSnapshot:
    """The shards and releases of one generation. They do not change as long as their files exist."""

    def __init__(
        self,
        store: ShardStore,
        manifest: Manifest,
        shards: dict[str, SearchableShard],
        degraded: dict[str, str],
        verified: set[str],
        *,
        verify: bool,
    ) -> None:
        """Create a snapshot; use :meth:`open`.

        ``verified`` are the IDs of folders whose checksums were compared, here or in an earlier snapshot; with
        ``verify``, those of a release are on first use.
        """
        self.manifest = manifest
        self.generation = manifest.generation
        self.degraded = degraded  # task → reason why its shard cannot be searched; others are served
        self._store = store
        self._shards = shards
        self._verified = verified
        self._verify = verify

    @classmethod
    def open(
        cls,
        store: ShardStore,
        *,
        verify: bool = True,
        previous: IndexSnapshot | None = None,
        max_verified_bytes: int | None = None,
    ) -> IndexSnapshot:
        """Open the current generation, without the shards that contradict the manifest; raises ManifestError.

        Args:
            verify: Read every byte of new shards, compare checksums, and open them once; otherwise compare only sizes,
                and open a shard on first use.
            previous: Earlier snapshot. Its shards are reused, since they cannot have changed, so a new generation
                takes no longer in a library with many tasks.
            max_verified_bytes: How many bytes of shards to read without a previous snapshot, newest first. The others
                become :attr:`unverified_segments`, because reading a large library takes minutes. None reads all.
        """
        manifest = store.manifest()
        verified: set[str] = previous._verified if previous else set()
        deferred: set[str] = set()
        if verify and previous is None and max_verified_bytes is not None:
            deferred = _segments_beyond(manifest, max_verified_bytes)
        shards: dict[str, SearchableShard] = {}
        degraded: dict[str, str] = {}
        for task in manifest.shards:
            open_shard = previous._shards.get(task) if previous else None
            if previous and open_shard and manifest.has_same_shard(task, previous.manifest):
                shards[task] = open_shard
                continue
            try:
                deleted = store.tombstones(manifest, task)
                for entry in manifest.segments(task):
                    if open_shard is None or entry not in open_shard.segments:
                        verify_now = verify and entry.id not in deferred
                        require_intact(store.shard_folder(entry.id), entry, verify=verify_now)
                        if verify_now:
                            verified.add(entry.id)
                        # A server lists all its segments in one request; files are opened one by one.
                        if verify_now or (verify and entry.place):
                            store.check(entry, "exists")
                shards[task] = store.open(manifest.segments(task), deleted)
            except ShardStoreError as error:
                degraded[task] = str(error)
        store.segment_cache.retain(
            {entry.id for entry in manifest.all_segments()}
        )  # not those kept for undoing
        return cls(store, manifest, shards, degraded, verified, verify=verify)

    @property
    def tasks(self) -> list[str]:
        """Tasks whose shards can be searched, in order of publication."""
        return list(self._shards)

    @property
    def unverified_segments(self) -> list[SegmentEntry]:
        """Segments that are served although their checksums were not compared yet, newest first."""
        entries = [entry for shard in list(self._shards.values()) for entry in shard.segments]
        return [entry for entry in reversed(entries) if entry.id not in self._verified]

    @property
    def gpu_failures(self) -> dict[str, str]:
        """Why a CPU searches shards in place of the GPU, by task."""
        return self._store.segment_cache.gpu_failures()

    def verify_segment(self, entry: SegmentEntry) -> None:
        """Read every byte of a segment and compare checksums; raises ShardMissing or ShardCorrupt."""
        require_intact(self._store.shard_folder(entry.id), entry, verify=True)
        self._verified.add(entry.id)

    def mark_degraded(self, task: str, reason: str) -> None:
        """Stop serving a shard that failed during use. The next snapshot opens it again."""
        self.degraded[task] = reason
        self._shards.pop(task, None)

    def release_folder(self, release: str, *, files: Collection[str] = ()) -> Path:
        """Locate a release of this generation, and check its files; raises ReleaseCorrupt.

        File sizes are always compared; checksums on first use, here or in an earlier snapshot.

        Args:
            files: Names of all files that the caller reads. If the release has them all, only these are checked. Empty
                checks the whole release.
        """
        entry = self.manifest.releases.get(release)
        if entry is None:
            raise ReleaseCorrupt(f"release {release[:12]} is not in the manifest")
        folder = self._store.release_folder(entry.id)
        verify = self._verify and release not in self._verified
        selected = {name: entry.files[name] for name in files if name in entry.files}
        if files and len(selected) == len(files):
            problem = find_damage(folder, selected, None, verify=verify)
        else:
            files, problem = (), find_damage(folder, entry.files, entry.bytes, verify=verify)
        if problem:
            raise ReleaseCorrupt(f"release {release[:12]}: {problem}; restore it from a backup")
        if verify and not files:
            self._verified.add(release)
        return folder

    def shard(self, task: str, *, fingerprint: str) -> SearchableShard:
        """Look up a task's shard for queries from one encoder; raise FingerprintMismatch, ShardMissing."""
        if task not in self._shards:
            raise ShardMissing(self.degraded.get(task, f"task {task} has no shard"))
        shard = self._shards[task]
        if shard.entry.fingerprint != fingerprint:
            raise FingerprintMismatch(
                f"the shard of task {task} was made by encoder {shard.entry.fingerprint[:12]}, "
                f"but the query is for {fingerprint[:12]}; restore the index as a whole from one backup"
            )
        return shard


def _segments_beyond(manifest: Manifest, max_bytes: int) -> set[str]:
    """List the IDs of the segments beyond a number of bytes, counted from the newest task."""
    beyond: set[str] = set()
    for task in reversed(manifest.shards):
        for entry in manifest.segments(task):
            max_bytes -= entry.bytes
            if max_bytes < 0:
                beyond.add(entry.id)
    return beyond
