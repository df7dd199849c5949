"""The manifest of a store: entries for releases, shards and tombstones, and their JSON format.

    manifest.json                    replaced as a whole; its replacement is the publish point
    shards/<id>/shard.json           description of a segment
    shards/<id>/vectors.faiss        unit rows, exact inner products: float16 in an IndexScalarQuantizer
    shards/<id>/ids.npy              int64, one per row
    shards/<id>/queries.npy          float32, queries that measured the ANN structure; large segments only
    shards/<id>/search.faiss         ANN structure that passed the recall gate; see index.scanning.ann_index
    releases/<id>/…                  files of a release, or of its training state; opaque to the index
    tombstones/<id>/deleted.npy      int64, deleted IDs of one task

If a remote store holds the vectors (see :mod:`index.shards.vector_store`), a segment's folder has ``vectors.json``, a
digest of its rows, instead of ``vectors.faiss``; everything else is the same.

A folder's ID is the SHA-256 of its files' names and hashes, so a folder can only ever have one content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from index.errors import ManifestError

SCHEMA = 1
_RESTORE = "restore it from a backup"


@dataclass(frozen=True)
class AnnStructure:
    """The ANN structure for a large segment, and the measurement that admitted it (``index.scanning.ann_index``)."""

    # ivf, sq8, or flat: no structure passed, and every vector is scanned, as with hnsw, a kind of earlier versions
    kind: str
    parameter: int  # search effort: lists to probe, or multiple of k, depending on the kind
    recall: float  # share of the exact results that it returns; the minimum over the measured depths
    target: float  # required recall
    depth: int  # maximum number of results that it returns; deeper searches are exact
    queries: int  # number of text queries used in the measurement
    rows: int  # number of vectors in the measurement
    work: float  # how much data a search reads, as a share of an exact scan
    # best recall within the permitted work, by kind, for kinds that were tried earlier and failed
    refused: dict[str, float]


@dataclass(frozen=True)
class SegmentEntry:
    """A segment of a shard, as the manifest describes it. A task's first segment pins its release."""

    id: str  # of its folder
    task: str
    release: str  # that embedded it
    fingerprint: str  # of the video encoder that made the vectors
    count: int  # vectors; 0 after all were deleted and the shard was compacted
    dim: int
    first_id: int  # 0 without vectors
    last_id: int  # −1 without vectors
    bytes: int  # total size of its files
    files: dict[str, str]  # name → SHA-256
    structure: AnnStructure | None = None  # None: every vector is scanned, and no structure was measured
    # Where the vectors are: empty for its folder, otherwise the name of a remote store, a colon and the place there,
    # such as ``milvus:cinestrata_512_0/t_tsk_1``.
    place: str = ""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SegmentEntry:
        """Read an entry of the manifest; raises KeyError or TypeError for unknown or missing fields."""
        structure = fields["structure"]
        return cls(**{**fields, "structure": AnnStructure(**structure) if structure is not None else None})


@dataclass(frozen=True)
class ReleaseEntry:
    """A release, as the manifest describes it: ID, total size and files (name → SHA-256) of its folder."""

    id: str
    bytes: int
    files: dict[str, str]


@dataclass(frozen=True)
class TombstoneEntry:
    """All deletions in a task: how many IDs are deleted, and ID, total size and files of their folder."""

    id: str
    task: str
    count: int
    bytes: int
    files: dict[str, str]


def task_of(key: str) -> str:
    """Get the task of a shard from its key in the manifest, ``<task>`` or ``<task>~<ID>``."""
    return key.partition("~")[0]


@dataclass(frozen=True)
class ReplacedShard:
    """The shard that an upgrade of its task replaced: segments in order of publication, and deleted IDs in them.

    ``parts`` are the task's other shards then, by key.
    """

    segments: tuple[SegmentEntry, ...]
    tombstones: TombstoneEntry | None
    parts: dict[str, ReplacedShard] = field(default_factory=dict)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ReplacedShard:
        """Read an entry of the manifest; raises KeyError or TypeError for missing fields."""
        return cls(
            tuple(SegmentEntry.from_json(segment) for segment in fields["segments"]),
            TombstoneEntry(**fields["tombstones"]) if fields["tombstones"] else None,
            {key: cls.from_json(part) for key, part in fields.get("parts", {}).items()},
        )


@dataclass(frozen=True)
class Manifest:
    """One generation of the store; by default, the one before the first publication."""

    generation: int = 0  # number of publications so far; 0 before the first
    created: str = ""  # time of publication, ISO 8601 in UTC; empty before the first
    release: str | None = None  # ID of the newest release, which the next task continues
    # The newest release, and every release that a shard pins, in order of publication. None is ever removed.
    releases: dict[str, ReleaseEntry] = field(default_factory=dict)
    # Task → first segment of its shard, in order of publication. An upgrade leaves the videos that it could not read
    # in their shard, under the key ``<task>~<ID>``; segments and tombstones name the task.
    shards: dict[str, SegmentEntry] = field(default_factory=dict)
    # task → segments that were appended later, embedded with the pinned release
    appended: dict[str, tuple[SegmentEntry, ...]] = field(default_factory=dict)
    tombstones: dict[str, TombstoneEntry] = field(default_factory=dict)  # task → deleted IDs in its segments
    # ID of the release that searches use while it is not the newest; None means the newest
    pinned: str | None = None
    # task → the shard that it had before its latest upgrade, until the upgrade is accepted or undone
    replaced: dict[str, ReplacedShard] = field(default_factory=dict)
    # ID of a release → the folder of what only training needs of it, which later publications drop
    training: dict[str, ReleaseEntry] = field(default_factory=dict)

    @property
    def served(self) -> str | None:
        """ID of the release that searches use; None before the first publication."""
        return self.pinned or self.release

    def releases_after(self, release: str) -> list[str]:
        """List the IDs of the releases that were published after a release of this manifest."""
        order = list(self.releases)
        return order[order.index(release) + 1 :]

    def folder_ids(self) -> set[str]:
        """Collect the IDs of the folders that the manifest names."""
        segments, tombstones, releases = self.kept_segments(), self.kept_tombstones(), self.kept_releases()
        return {entry.id for entry in segments} | {e.id for e in tombstones} | {e.id for e in releases}

    def without(self, task: str) -> Manifest:
        """Remove a task's segments, deletions and replaced shard."""
        changed = replace(self, replaced={key: each for key, each in self.replaced.items() if key != task})
        for key in self.keys_of(task):
            changed = changed.without_shard(key)
        return changed

    def without_shard(self, key: str) -> Manifest:
        """Remove one of a task's shards, with its deletions."""
        return replace(
            self,
            shards={other: entry for other, entry in self.shards.items() if other != key},
            appended={other: entries for other, entries in self.appended.items() if other != key},
            tombstones={other: entry for other, entry in self.tombstones.items() if other != key},
        )

    def with_new_shard(self, first: SegmentEntry) -> Manifest:
        """Replace a task's shards, or those that it lacks, by a new one, which takes their place in the order."""
        changed, task = self.without(first.task), first.task
        shards = {**self.shards, task: first}.items()
        remaining = {key: entry for key, entry in shards if key == task or key in changed.shards}
        return replace(changed, shards=remaining)

    def with_shard(self, key: str, shard: ReplacedShard) -> Manifest:
        """Add a shard as it was; the one with the task's ID as its key becomes the last of the task."""
        first, *appended = shard.segments
        order = {task: number for number, task in enumerate(self.shards)}
        shards = sorted(
            {**self.shards, key: first}.items(), key=lambda i: (order[task_of(i[0])], "~" not in i[0])
        )
        changed = replace(self, shards=dict(shards))
        if appended:
            changed = replace(changed, appended={**changed.appended, key: tuple(appended)})
        if shard.tombstones:
            changed = replace(changed, tombstones={**changed.tombstones, key: shard.tombstones})
        return changed

    def keys_of(self, task: str) -> list[str]:
        """List the keys of a task's shards."""
        return [key for key in self.shards if task_of(key) == task]

    def kept_segments(self) -> list[SegmentEntry]:
        """List the segments of all tasks, then those of replaced shards."""
        return self.all_segments() + [entry for shard in self._replaced_shards() for entry in shard.segments]

    def _replaced_shards(self) -> list[ReplacedShard]:
        return [replaced for shard in self.replaced.values() for replaced in (shard, *shard.parts.values())]

    def kept_releases(self) -> list[ReleaseEntry]:
        """List the folders of all releases, then those of training states."""
        return [*self.releases.values(), *self.training.values()]

    def kept_tombstones(self) -> list[TombstoneEntry]:
        """List the deletions in all tasks, then those in replaced shards."""
        replaced = [shard.tombstones for shard in self._replaced_shards() if shard.tombstones]
        return [*self.tombstones.values(), *replaced]

    def all_segments(self) -> list[SegmentEntry]:
        """List the segments of all tasks, in order of publication."""
        return [segment for task in self.shards for segment in self.segments(task)]

    def segments(self, task: str) -> tuple[SegmentEntry, ...]:
        """List the segments of a task's shard, in order of publication."""
        return (self.shards[task], *self.appended.get(task, ()))

    def has_same_shard(self, task: str, other: Manifest) -> bool:
        """Check whether a task's shard has the same segments and deletions in another generation."""
        is_same = self.tombstones.get(task) == other.tombstones.get(task)
        return is_same and self.segments(task) == other.segments(task)

    def live_count(self, task: str) -> int:
        """Count the undeleted vectors of a task."""
        return sum(segment.count for segment in self.segments(task)) - self.deleted_count(task)

    def deleted_count(self, task: str) -> int:
        """Count the deleted vectors that a task's segments still contain."""
        return self.tombstones[task].count if task in self.tombstones else 0

    def dumps(self) -> str:
        """Convert to JSON, with its own checksum."""
        return dump_checked({"schema": SCHEMA, **vars(self)})

    @classmethod
    def loads(cls, text: str) -> Manifest:
        """Parse and verify a manifest's JSON; raises ManifestError."""
        try:
            body: dict[str, Any] = json.loads(text)
            checksum = body.pop("checksum")
            schema = body["schema"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ManifestError(f"manifest.json is not a manifest ({error}); {_RESTORE}") from error
        if schema != SCHEMA:
            raise ManifestError(
                f"manifest.json has schema {schema}, but this version reads {SCHEMA}: use the version that wrote it"
            )
        if checksum != _checksum(body):
            raise ManifestError(f"manifest.json was altered: its checksum is wrong; {_RESTORE}")
        try:
            manifest = cls(
                generation=body["generation"],
                created=body["created"],
                release=body["release"],
                releases={key: ReleaseEntry(**entry) for key, entry in body["releases"].items()},
                shards={key: SegmentEntry.from_json(entry) for key, entry in body["shards"].items()},
                appended={
                    key: tuple(SegmentEntry.from_json(entry) for entry in entries)
                    for key, entries in body["appended"].items()
                },
                tombstones={key: TombstoneEntry(**entry) for key, entry in body["tombstones"].items()},
                pinned=body["pinned"],
                replaced={
                    key: ReplacedShard.from_json(entry)
                    for key, entry in body.get("replaced", {}).items()  # 1.0 has no upgrades
                },
                training={key: ReleaseEntry(**entry) for key, entry in body.get("training", {}).items()},
            )
            if manifest.pinned is not None and manifest.pinned not in manifest.releases:
                raise ManifestError(f"manifest.json pins a release that it does not list; {_RESTORE}")
            folders: list[ReleaseEntry | TombstoneEntry | SegmentEntry] = [
                *manifest.kept_releases(),
                *manifest.kept_segments(),
                *manifest.kept_tombstones(),
            ]
            for folder in folders:
                _require_content_id(folder.id, folder.files)
        except (KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"manifest.json lacks a field ({error}); {_RESTORE}") from error
        return manifest


def content_id(files: Mapping[str, str]) -> str:
    """Compute the ID of a folder with these files (name → SHA-256)."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def dump_checked(body: Mapping[str, Any]) -> str:
    """Convert JSON values to text that has their checksum."""
    return json.dumps({**body, "checksum": _checksum(body)}, default=vars) + "\n"


def load_checked(text: str) -> dict[str, Any]:
    """Invert :func:`dump_checked`; raises ValueError if the text was altered."""
    try:
        body: dict[str, Any] = json.loads(text)
        checksum = body.pop("checksum")
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it has no checksum: {error}") from error
    if checksum != _checksum(body):
        raise ValueError("its checksum is wrong")
    return body


def _checksum(body: Mapping[str, Any]) -> str:
    # Entries are converted one by one: asdict, which copies all of them first, takes three times as long.
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=vars).encode()).hexdigest()


def _require_content_id(identifier: str, files: Mapping[str, str]) -> None:
    # A manifest from a foreign backup may be hostile: its checksum proves integrity, not that its paths are safe.
    if identifier != content_id(files) or any("/" in name or name in ("", "..") for name in files):
        raise ManifestError(
            f"manifest.json names a folder {identifier[:12]!r} that does not match its files; {_RESTORE}"
        )
