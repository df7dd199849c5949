"""Rules that a release, shard or segment must satisfy before it is published."""

from __future__ import annotations

import numpy as np

from index.errors import ShardCorrupt, ShardInvalid, ShardMissing
from index.files.durable_files import find_damage
from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry
from index.shard_reader import ShardReader


class PublishValidator:
    """Checks entries against the files on disk and the manifest. Every method raises ShardInvalid."""

    def __init__(self, reader: ShardReader) -> None:
        self._reader = reader

    def require_release(self, release: ReleaseEntry) -> None:
        """Require that the files of a release are those that were written."""
        problem = find_damage(
            self._reader.release_folder(release.id), release.files, release.bytes, verify=True
        )
        if problem:
            raise ShardInvalid(
                f"release {release.id[:12]} is not in the store as it was written: {problem}; write it again"
            )

    def require_new_shard(self, shard: SegmentEntry, manifest: Manifest) -> None:
        """Require that a segment can be the first of a new shard."""
        name = f"shard {shard.id[:12]} of task {shard.task}"
        if shard.release not in manifest.releases:
            raise ShardInvalid(f"{name}: its release {shard.release[:12]} is neither published nor given")
        other = manifest.shards.get(shard.task)
        if other is not None:
            raise ShardInvalid(
                f"{name}: the task already has shard {other.id[:12]}; a published shard is never replaced"
            )
        self._require_compatible(shard, manifest)

    def require_appendable(self, segment: SegmentEntry, manifest: Manifest) -> None:
        """Require that a segment can be appended to the shard of its task."""
        name = f"segment {segment.id[:12]} of task {segment.task}"
        if segment.task not in manifest.shards:
            raise ShardInvalid(f"{name}: the task is not published")
        pinned = manifest.shards[segment.task]
        if (segment.release, segment.fingerprint) != (pinned.release, pinned.fingerprint):
            raise ShardInvalid(
                f"{name}: release {segment.release[:12]} made it, and the task's vectors are of release "
                f"{pinned.release[:12]}; embed with that one"
            )
        self._require_compatible(segment, manifest)

    def require_intact(self, name: str, segment: SegmentEntry) -> None:
        """Require that the files and rows of a segment are those that were written.

        Args:
            name: Name of the segment in messages.
            segment: Segment to check.
        """
        folder = self._reader.shard_folder(segment.id)
        problem = find_damage(folder, segment.files, segment.bytes, verify=True)
        if problem:
            raise ShardInvalid(f"{name} is not in the store as it was written: {problem}; write it again")
        try:
            self._reader.check(segment, "rows")
        except (ShardMissing, ShardCorrupt) as error:
            raise ShardInvalid(
                f"{name} is not in the store as it was written: {error}; write it again"
            ) from error

    def _require_compatible(self, segment: SegmentEntry, manifest: Manifest) -> None:
        """Require that a segment is intact, and shares the dimension but no id with the published segments."""
        name = f"shard {segment.id[:12]} of task {segment.task}"
        self.require_intact(name, segment)
        for other in manifest.all_segments():
            if other.dim != segment.dim:
                raise ShardInvalid(
                    f"{name}: its vectors have {segment.dim} dimensions, those of task {other.task} have {other.dim}"
                )
            # Ranges of ids seldom overlap, so the cost does not grow with the number of shards.
            if segment.first_id <= other.last_id and other.first_id <= segment.last_id:
                shared = np.intersect1d(
                    self._reader.segment_ids(segment), self._reader.segment_ids(other), assume_unique=True
                )
                if len(shared):
                    raise ShardInvalid(f"{name}: id {int(shared[0])} belongs to task {other.task} already")
