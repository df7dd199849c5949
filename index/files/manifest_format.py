"""The words of the on-disk format: entries and manifest, as dataclasses and as JSON.

    manifest.json                    replaced as a whole; its replacement is the publish point
    shards/<id>/shard.json           what the shard is
    shards/<id>/vectors.faiss        unit rows, exact inner products: float16 in an IndexScalarQuantizer
    shards/<id>/ids.npy              int64, one per row
    shards/<id>/queries.npy          float32, what a search structure was measured with; large shards only
    shards/<id>/search.faiss         the structure, where it passed; see index.scanning.ann_index
    releases/<id>/…                  files of a release, opaque here
    tombstones/<id>/deleted.npy      int64, ids of one task that are not found any more

Where another store holds the vectors (see :mod:`index.shards.vector_store`), a shard's folder has ``vectors.json``, the digest
of its rows, in place of ``vectors.faiss``; all else is the same.

Schema 1 stored float32 rows in an IndexFlatIP. Its manifests and shards are read as they are, and never rewritten; the
first publication replaces the manifest by one of schema 2, which versions that know schema 1 alone refuse by name.
Schema 3 is schema 2 with search structures and places. It is written only where a shard has been measured for the
one, or its vectors are elsewhere, so other libraries stay readable to versions that know schema 2.
Schema 4 is schema 3 with tasks of which nothing is left (:mod:`index.shards.empty_vector_store`), and is written only where there is one.

A folder's id is the SHA-256 of its files' names and hashes, so a folder can only ever hold one content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from index.errors import ManifestError

__all__ = [
    "SCHEMA",
    "AnnStructure",
    "Manifest",
    "ReleaseEntry",
    "SegmentEntry",
    "TombstoneEntry",
    "content_id",
]

SCHEMA = 4
_MEASURED = 3  # schema of a library without emptied tasks
_PLAIN = 2  # and without structures and places
_RESTORE = "restore it from a backup"


@dataclass(frozen=True)
class AnnStructure:
    """How a large shard is searched, and what was measured before it was allowed (``index.scanning.ann_index``).

    Attributes:
        kind: ``ivf``, ``hnsw``, ``sq8``, or ``flat``: nothing passed, and every vector is read.
        parameter: how thorough the structure is when it is searched.
        recall: share of the exact results that it finds, the lower one of those at the gate's depths.
        target: which recall was asked for.
        depth: how many results it is asked for; deeper searches are exact.
        queries, rows: with how many text queries it was measured, against how many vectors.
        work: what a search reads, as a share of what an exact one does.
        refused: kind → recall with as much work as is worth it, of those that were tried before and did not pass.
    """

    kind: str
    parameter: int
    recall: float
    target: float
    depth: int
    queries: int
    rows: int
    work: float
    refused: dict[str, float]


@dataclass(frozen=True)
class SegmentEntry:
    """A shard as the manifest knows it.

    Attributes:
        id: of its folder.
        task, release: whom it belongs to, and which release made it.
        fingerprint: of the video encoder that made the vectors.
        count, dim: vectors and their width. None are left of a task that was deleted and compacted.
        first_id, last_id: lowest and highest id of its vectors; 0 and −1 where there is none.
        bytes: of all files.
        files: name → SHA-256.
        dtype: of the stored vectors; schema 1 knew ``float32`` alone, and did not write it down.
        structure: how it is searched; None: every vector is read, and nothing else was measured.
        place: where the vectors are: empty, in its folder; otherwise the name of another store, a colon, and what
            that store calls the place, such as ``milvus:cinestrata_512_0/t_tsk_1``.
    """

    id: str
    task: str
    release: str
    fingerprint: str
    count: int
    dim: int
    first_id: int
    last_id: int
    bytes: int
    files: dict[str, str]
    dtype: str = "float32"
    structure: AnnStructure | None = None
    place: str = ""

    def to_json(self) -> dict[str, Any]:
        """Its fields; without ``structure`` and ``place`` where there is none, as schema 2 has it."""
        fields = asdict(self)
        return {name: value for name, value in fields.items() if value or name not in ("structure", "place")}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SegmentEntry:
        """The reverse; raises TypeError where fields are not ours."""
        structure = fields.get("structure")
        return cls(**{**fields, "structure": AnnStructure(**structure) if structure is not None else None})


@dataclass(frozen=True)
class ReleaseEntry:
    """A release as the manifest knows it: its folder's id, size and files."""

    id: str
    bytes: int
    files: dict[str, str]


@dataclass(frozen=True)
class TombstoneEntry:
    """All deletions of a task: whose, how many, and their folder's id, size and files."""

    id: str
    task: str
    count: int
    bytes: int
    files: dict[str, str]


@dataclass(frozen=True)
class Manifest:
    """One generation of the store.

    Attributes:
        generation: grows by one with every publication; 0 before the first.
        created: when it was published, ISO 8601 in UTC; empty before the first.
        release: id of the current release.
        releases: all that a shard pins, and the current one, which goes on from these. None is ever dropped.
        shards: by task, in the order in which they were published.
        appended: by task, the segments that its release made later.
        tombstones: by task, what was deleted from its segments.
    """

    generation: int = 0
    created: str = ""
    release: str | None = None
    releases: dict[str, ReleaseEntry] = field(default_factory=dict)
    shards: dict[str, SegmentEntry] = field(default_factory=dict)
    appended: dict[str, tuple[SegmentEntry, ...]] = field(default_factory=dict)
    tombstones: dict[str, TombstoneEntry] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> Manifest:
        """The store before its first publication."""
        return cls()

    def folder_ids(self) -> set[str]:
        """Ids of the folders that it names."""
        stones = {entry.id for entry in self.tombstones.values()}
        return {part.id for task in self.shards for part in self.segments(task)} | set(self.releases) | stones

    def segments(self, task: str) -> tuple[SegmentEntry, ...]:
        """The segments of a task, the first one first."""
        return (self.shards[task], *self.appended.get(task, ()))

    def live_count(self, task: str) -> int:
        """How many vectors of a task can be found."""
        return sum(part.count for part in self.segments(task)) - self.deleted_count(task)

    def deleted_count(self, task: str) -> int:
        """How many of a task cannot be found any more."""
        return self.tombstones[task].count if task in self.tombstones else 0

    def dumps(self) -> str:
        """JSON with its own checksum."""
        parts = [part for task in self.shards for part in self.segments(task)]
        schema = _MEASURED if any(part.structure or part.place for part in parts) else _PLAIN
        body = {
            "schema": schema if all(part.count for part in parts) else SCHEMA,
            **asdict(replace(self, shards={}, appended={})),
            "shards": {task: entry.to_json() for task, entry in self.shards.items()},
            "appended": {task: [part.to_json() for part in more] for task, more in self.appended.items()},
        }
        return json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n"

    @classmethod
    def loads(cls, text: str) -> Manifest:
        """Read and verify.

        Raises:
            ManifestError: not JSON, a newer schema, a checksum that does not fit, or fields that are not ours.
        """
        try:
            body: dict[str, Any] = json.loads(text)
            checksum = body.pop("checksum")
            schema = body["schema"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ManifestError(f"manifest.json is not a manifest ({error}); {_RESTORE}") from error
        if not isinstance(schema, int) or schema > SCHEMA:
            raise ManifestError(
                f"manifest.json has schema {schema}, and this version reads {SCHEMA}: "
                "it was written by a newer Cinestrata; use that version"
            )
        if checksum != _checksum(body):
            raise ManifestError(f"manifest.json was altered: its checksum does not fit; {_RESTORE}")
        try:
            manifest = cls(
                generation=body["generation"],
                created=body["created"],
                release=body["release"],
                releases={key: ReleaseEntry(**entry) for key, entry in body["releases"].items()},
                shards={key: SegmentEntry.from_json(entry) for key, entry in body["shards"].items()},
                appended={
                    key: tuple(SegmentEntry.from_json(entry) for entry in entries)
                    for key, entries in body.get("appended", {}).items()
                },
                tombstones={
                    key: TombstoneEntry(**entry) for key, entry in body.get("tombstones", {}).items()
                },
            )
            parts = [part for task in manifest.shards for part in manifest.segments(task)]
            folders: list[ReleaseEntry | TombstoneEntry | SegmentEntry] = [
                *manifest.releases.values(),
                *parts,
            ]
            for folder in [*folders, *manifest.tombstones.values()]:
                _require_inside(folder.id, folder.files)
        except (KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"manifest.json lacks a field ({error}); {_RESTORE}") from error
        return manifest


def content_id(files: Mapping[str, str]) -> str:
    """Id of a folder with these files (name → SHA-256)."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _require_inside(identifier: str, files: Mapping[str, str]) -> None:
    # A manifest may come with somebody's backup; its checksum proves that it is whole, not that it is kind.
    if identifier != content_id(files) or any("/" in name or name in ("", "..") for name in files):
        raise ManifestError(
            f"manifest.json names a folder {identifier[:12]!r} that is not its content; {_RESTORE}"
        )
