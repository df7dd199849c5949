"""Check a library independently: read the index files and the catalog rows without product code.

Each violation is a sentence. The library must be at rest, with no unfinished task.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt


class CatalogReader:
    """Reads the tables of a catalog, over a connection of :mod:`sqlite3` or :mod:`psycopg`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Run a query and return its rows by column, with JSON columns decoded."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(query)
            names = [column[0] for column in cursor.description]
            return [_decoded(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
        finally:
            cursor.close()
            self._connection.rollback()  # so that the next query sees later commits

    def tasks(self) -> list[dict[str, Any]]:
        """List the tasks by position."""
        return self.rows("SELECT * FROM tasks ORDER BY position")

    def videos(self) -> list[dict[str, Any]]:
        """List the videos by vector ID."""
        return self.rows("SELECT vector_id, id, task_id, uri, status, reason FROM videos ORDER BY vector_id")

    def last_edit(self) -> int:
        """Get the number of the last edit; in PostgreSQL, numbers are a counter and the ID of a transaction."""
        is_sqlite = isinstance(self._connection, sqlite3.Connection)
        transaction = "0" if is_sqlite else "txid_snapshot_xmax(txid_current_snapshot())"
        return int(self.rows(f"SELECT last_edit + {transaction} AS number FROM edits")[0]["number"])

    def epochs(self) -> dict[str, list[int]]:
        """Map each task ID to the epochs that its training reported, in the order in which they were stored."""
        epochs: dict[str, list[int]] = {}
        for row in self.rows("SELECT task_id, data FROM events WHERE kind = 'progress' ORDER BY id"):
            data: Mapping[str, Any] = row["data"]
            if data.get("stage") == "training" and data.get("epoch"):
                epochs.setdefault(row["task_id"], []).append(int(data["epoch"]))
        return epochs

    def leases(self) -> list[str]:
        """Find leases on finished tasks and on their chunks; none may remain."""
        final = "('ready', 'failed', 'cancelled')"
        leased = self.rows(f"SELECT id FROM tasks WHERE state IN {final} AND lease_owner IS NOT NULL")
        chunks = self.rows(
            "SELECT chunks.task_id AS id FROM chunks JOIN tasks ON tasks.id = chunks.task_id "
            f"WHERE tasks.state IN {final} AND chunks.lease_owner IS NOT NULL"
        )
        return [row["id"] for row in (*leased, *chunks)]


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    """Decode the columns that SQLite stores as text."""
    for name in ("data", "counts", "progress"):
        if isinstance(row.get(name), str):
            row[name] = json.loads(row[name])
    return row


_FINAL_STATES = ("ready", "failed", "cancelled")
_FIRST_MOMENT = 1 << 62  # from here on, IDs are those of moments; the bits above the lowest 16 give the video
_GRACE_SECONDS = 3600.0  # after which a folder that the manifest does not name must be gone


@dataclass
class ExpectedVideos:
    """Videos that the service has acknowledged."""

    stored: set[str] = field(default_factory=set)  # IDs of videos that must be stored, or listed as rejected
    deleted: set[str] = field(default_factory=set)  # IDs of videos whose deletion was acknowledged
    uris: set[str] = field(default_factory=set)  # URIs of files that a finished sync must have stored


class LibraryChecker:
    """Compares a library's index, catalog and acknowledged videos; ``milvus`` is the URI of the vectors' server."""

    def __init__(self, data: Path, catalog: CatalogReader, milvus: str = "") -> None:
        self._data, self._index = data, data / "index"
        self._catalog, self._milvus = catalog, milvus
        self._manifest: dict[str, Any] = {}
        self._words: dict[str, Any] = {}

    def check(self, expected: ExpectedVideos) -> list[str]:
        """List the violations; empty if there are none."""
        return [*self._check(expected)]

    def _check(self, expected: ExpectedVideos) -> Iterator[str]:
        try:
            self._manifest = json.loads((self._index / "manifest.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            names = ("shards", "appended", "tombstones", "releases", "training", "replaced")
            self._manifest = {"release": None, **{name: {} for name in names}}
        except ValueError as error:
            yield f"manifest.json is not JSON: {error}"
            return
        if (words := self._index / "words.json").exists():
            self._words = json.loads(words.read_text(encoding="utf-8"))
        yield from self._check_folders()
        yield from self._check_words()
        live = yield from self._check_segments()
        yield from self._check_videos(live, expected)
        yield from self._check_tasks()
        yield from self._check_leftovers()

    def _segments(self) -> Iterator[dict[str, Any]]:
        for key in self._manifest["shards"]:
            yield from self._segments_of(key)

    def _segments_of(self, key: str) -> list[dict[str, Any]]:
        first = self._manifest["shards"].get(key)
        return [*filter(None, [first]), *self._manifest["appended"].get(key, [])]

    def _named(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """List the parent of each folder that the manifest names, and its entry."""
        replaced = list(self._manifest["replaced"].values())  # by upgrades that can be undone
        replaced += [part for shard in replaced for part in shard.get("parts", {}).values()]
        tombstones = [*self._manifest["tombstones"].values(), *(shard["tombstones"] for shard in replaced)]
        segments = [*self._segments(), *(entry for shard in replaced for entry in shard["segments"])]
        yield from (("shards", entry) for entry in segments)
        training = self._manifest["training"].values()  # state that the next task continues
        yield from (("releases", entry) for entry in (*self._manifest["releases"].values(), *training))
        yield from (("tombstones", entry) for entry in tombstones if entry)
        words = self._words.get("folders", {}).items()
        yield from (("words", {"id": name, **entry}) for name, entry in words)

    def _check_folders(self) -> Iterator[str]:
        """Check that every byte that the manifest names matches its checksum."""
        for parent, entry in self._named():
            folder = self._index / parent / entry["id"]
            for name, digest in entry["files"].items():
                try:
                    content = (folder / name).read_bytes()
                except OSError as error:
                    yield f"{parent}/{entry['id'][:12]}/{name} cannot be read: {error.strerror}"
                    continue
                if hashlib.sha256(content).hexdigest() != digest:
                    yield f"{parent}/{entry['id'][:12]}/{name} differs from its checksum"
        if self._manifest["shards"] and self._manifest["release"] not in self._manifest["releases"]:
            yield "the manifest does not list its current release"
        for entry in self._segments():
            if entry["release"] not in self._manifest["releases"]:
                yield f"the manifest does not list release {entry['release'][:12]}, which a shard pins"

    def _check_words(self) -> Iterator[str]:
        """Check that the words, if they were written, have no edit that the catalog lacks."""
        last = self._catalog.last_edit()
        if self._words.get("edit", 0) > last:
            yield f"the words contain edit {self._words['edit']}, and the catalog ends with {last}"

    def _check_segments(self) -> Generator[str, None, dict[str, set[int]]]:
        """Check that every vector is in one segment; returns the live whole-video IDs of each task.

        Of a partly upgraded task, one shard has as deleted ones the vectors that the next shard replaces.
        """
        seen: Counter[int] = Counter()
        live: dict[str, set[int]] = {}
        for key in {**self._manifest["shards"], **self._manifest["tombstones"]}:
            of_shard: Counter[int] = Counter()
            for entry in self._segments_of(key):
                ids = self._read_ids("shards", entry, "ids.npy")
                if ids is not None and entry["count"]:
                    of_shard.update(ids.tolist())
                    yield from self._check_vectors(entry, len(ids))
            deleted: set[int] = set()
            if entry := self._manifest["tombstones"].get(key):
                stored = self._read_ids("tombstones", entry, "deleted.npy")
                deleted = set() if stored is None else set(stored.tolist())
            if unknown := deleted - of_shard.keys():
                yield f"the tombstones of task {key} name {len(unknown)} vectors that its shard does not have"
            seen.update({vector: n for vector, n in of_shard.items() if n > 1 or vector not in deleted})
            task, _, _ = key.partition("~")
            live[task] = live.get(task, set()) | (of_shard.keys() - deleted)
        for vector_id, count in seen.items():
            if count > 1:
                yield f"vector {vector_id} is in {count} segments"
        for task, ids_of_task in live.items():
            videos = {vector_id for vector_id in ids_of_task if vector_id < _FIRST_MOMENT}
            orphans = {(v - _FIRST_MOMENT) >> 16 for v in ids_of_task if v >= _FIRST_MOMENT} - videos
            if orphans:
                yield f"task {task} has moments of {len(orphans)} videos without a vector"
            live[task] = videos
        return live

    def _check_vectors(self, entry: Mapping[str, Any], count: int) -> Iterator[str]:
        name = f"segment {entry['id'][:12]}"
        if entry["place"]:
            yield from self._check_remote_vectors(name, entry)
            return
        try:
            index = faiss.read_index(str(self._index / "shards" / entry["id"] / "vectors.faiss"))
        except RuntimeError as error:
            yield f"{name}: its vectors cannot be read: {str(error).splitlines()[0][:120]}"
            return
        if not index.ntotal == count == entry["count"]:
            yield f"{name} has {index.ntotal} vectors and {count} IDs instead of {entry['count']}"
            return
        lengths = np.linalg.norm(index.reconstruct_n(0, count), axis=1)
        if not (np.abs(lengths - 1) < 0.01).all():
            yield f"{name} has a vector whose length is not 1"

    def _check_remote_vectors(self, name: str, entry: Mapping[str, Any]) -> Iterator[str]:
        """Check a segment whose vectors are in Milvus, where the first 15 digits of its ID are its number."""
        from pymilvus import MilvusClient

        collection, _, partition = entry["place"].removeprefix("milvus:").partition("/")
        # A shared connection sends pings more often than the server permits, and is then refused.
        options = {"grpc.keepalive_time_ms": 300_000}
        client = MilvusClient(self._milvus, dedicated=True, grpc_options=options)
        client.load_collection(collection)
        where = {"filter": f"shard == {int(entry['id'][:15], 16)}", "partition_names": [partition]}
        rows = client.query(collection, output_fields=["id", "vector"], consistency_level="Strong", **where)
        client.close()
        stored = self._read_ids("shards", entry, "ids.npy")
        if stored is not None and sorted(row["id"] for row in rows) != sorted(stored.tolist()):
            yield f"{name}: Milvus has {len(rows)} vectors instead of {len(stored)}, or others"
        if any(abs(np.linalg.norm(row["vector"]) - 1) > 0.01 for row in rows):
            yield f"{name} has a vector whose length is not 1"

    def _read_ids(self, parent: str, entry: Mapping[str, Any], name: str) -> npt.NDArray[np.int64] | None:
        """Read the IDs in a file; None if they are unreadable, which :meth:`_check_folders` reports."""
        try:
            ids: npt.NDArray[np.int64] = np.load(
                self._index / parent / entry["id"] / name, allow_pickle=False
            )
        except (OSError, ValueError, EOFError):
            return None
        return ids

    def _check_videos(self, live: Mapping[str, set[int]], expected: ExpectedVideos) -> Iterator[str]:
        """Check that each acknowledged video is in one segment, rejected or deleted, and nothing else is searchable."""
        videos = self._catalog.videos()
        by_id = {video["id"]: video for video in videos}
        shards = {vector_id: task for task, ids in live.items() for vector_id in ids}
        tasks = {task["id"]: task for task in self._catalog.tasks()}
        for video in videos:
            task = tasks[video["task_id"]]
            if video["status"] == "accepted" and task["state"] == "ready" and task["deleted_at"] is None:
                domain = shards.get(video["vector_id"])
                if domain != (task["target_id"] or task["id"]):
                    yield f"video {video['id']} is accepted, and its vector is in {domain or 'no segment'}"
            if video["status"] == "rejected" and not video["reason"]:
                yield f"video {video['id']} is rejected without a reason"
            if video["status"] == "pending" and task["state"] == "ready":
                yield f"video {video['id']} is pending, and its task is ready"
        accepted = {video["vector_id"] for video in videos if video["status"] == "accepted"}
        for vector_id in sorted(set(shards) - accepted):
            yield f"vector {vector_id} of task {shards[vector_id]} belongs to no accepted video"
        for identifier in sorted(expected.stored):
            if identifier not in by_id:
                yield f"video {identifier} was acknowledged and is lost"
            elif by_id[identifier]["vector_id"] not in shards and by_id[identifier]["status"] != "rejected":
                yield f"video {identifier} was acknowledged, and no segment has it"
        for identifier in sorted(expected.deleted & by_id.keys()):
            yield f"video {identifier} was deleted and is in the catalog"
        stored = Counter(video["uri"] for video in videos if video["vector_id"] in shards)
        for uri in sorted(expected.uris):
            if stored[uri] != 1:
                yield f"the synced file {uri} is stored {stored[uri]} times"

    def _check_tasks(self) -> Iterator[str]:
        """Check that no task is stuck, failed or leased, and that every learned task's shard is published."""
        for task in self._catalog.tasks():
            if task["state"] not in _FINAL_STATES:
                yield f"task {task['name']} is stuck in {task['state']}"
            elif task["state"] != "ready":
                yield f"task {task['name']} is {task['state']}: {task['error']}"
            elif task["target_id"] is None and task["id"] not in self._manifest["shards"]:
                yield f"task {task['name']} is ready, and the manifest has no shard of it"
            elif (
                task["target_id"] is None
                and task["release_id"] != self._manifest["shards"][task["id"]]["release"]
            ):
                yield f"task {task['name']} has another release in the catalog than in the index"
        task_ids = {task["id"] for task in self._catalog.tasks()}
        for task_id in self._manifest["shards"]:
            if task_id.partition("~")[0] not in task_ids:
                yield f"the shard of task {task_id} belongs to no task"
        for task_id in self._catalog.leases():
            yield f"task {task_id} is finished and still leased"

    def _check_leftovers(self) -> Iterator[str]:
        """Check that no file or folder that nothing names is older than the grace period."""
        named = {entry["id"] for _, entry in self._named()}
        limit = time.time() - _GRACE_SECONDS
        folders = [
            folder
            for parent in ("tmp", "shards", "releases", "tombstones", "words")
            for folder in sorted((self._index / parent).glob("*"))
        ]
        for folder in folders:
            if folder.name not in named and folder.stat().st_mtime < limit:
                yield f"{folder.relative_to(self._data)} is named by nothing, and older than its grace time"
        videos = {video["id"] for video in self._catalog.videos()}
        for path in sorted((self._data / "thumbnails").glob("*")):
            if path.suffix == ".jpg" and path.stem not in videos and path.stat().st_mtime < limit:
                yield f"thumbnail {path.name} belongs to no video, and is older than its grace time"


def check_epochs(epochs: Mapping[str, list[int]]) -> list[str]:
    """Find the tasks that repeated more than the epoch in progress after an interruption, by their reported epochs."""
    violations = []
    for task, reported in epochs.items():
        highest = 0
        for epoch in reported:
            if epoch < highest:
                violations.append(
                    f"task {task} continued in epoch {epoch} after it had reached epoch {highest}"
                )
                break
            highest = max(highest, epoch)
    return violations
