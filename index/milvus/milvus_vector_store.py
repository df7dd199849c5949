"""Vectors in Milvus: a server, or for tests a local ``.db`` file (milvus-lite, one process at a time).

::

    <collection>_<dim>_<n>     n = 0, 1, …; up to 1,000 partitions each
    └── t_<task>               one partition for each task
        ├── key      VARCHAR   primary: <first 15 digits of the shard's id>:<id>
        ├── id       INT64     of the video
        ├── shard    INT64     the number that these 15 digits spell
        └── vector   FLOAT16_VECTOR, metric IP (FLOAT_VECTOR where there is no other: milvus-lite, Milvus before 2.4)

Milvus allows 1,024 partitions in a collection and 65,536 in all (``rootCoord.maxPartitionNum``,
``rootCoord.maxGeneralCapacity``). A partition key would know no such limit, but its partitions are shared by hash,
and can neither be loaded nor dropped for one task. So a collection that is full is followed by another, and the
manifest says for each shard which one it is in: 10,000 tasks take ten.

Rows are told apart by their shard, so that a copy of a task, or half of one, lies beside what is served without being
found. A search asks for the shards of its generation, without its deleted ids.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from index.errors import ShardCorrupt, ShardMissing, StoreUnavailable
from index.files.manifest_format import SegmentEntry
from index.hits import Hits
from index.milvus.milvus_address import MilvusAddress, MilvusIndex
from index.milvus.partition_cache import PartitionCache
from index.scanning.segment import IDS, require_queries
from index.shards.searchable_shard import SearchableShard, ranked_hits
from index.shards.vector_store import CheckLevel, Rows

if TYPE_CHECKING:
    from pymilvus import MilvusClient

__all__ = ["MilvusVectorStore"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


_NAME = "milvus"
_DIGEST = "vectors.json"
_PARTITIONS = 1000  # of a collection; Milvus stops at 1,024
_DIGITS = 15  # of a shard's id: 60 bits, so the number is not negative
_MOST = 16_384  # results of one search, and ids of one filter
_ANSWERS = 262_144  # hits of all queries of one request
_REQUEST_BYTES = 16 * 1024**2  # Milvus refuses 64 MiB
_SETTLED_SECONDS = 60  # after which every replica has a row; Milvus lets readers lag behind by 5
_BREATHER_SECONDS = 5  # in which a server that did not answer is not asked again
_BUILT: dict[MilvusIndex, dict[str, int]] = {
    "FLAT": {},
    "IVF_SQ8": {"nlist": 1024},
    "HNSW": {"M": 32, "efConstruction": 200},
}
_SLOWER = {"upsert": 10, "delete": 10, "load_partitions": 6, "load_collection": 6}
# Else a new connection begins with the failure of the one before it, although the server is back.
_ANEW = {"grpc.use_local_subchannel_pool": 1}
_HALF_FROM = (2, 4)  # Milvus' version; 2.3 makes such a field, and then refuses every row of it
_NO_CONNECTION = 2
_NOT_LOADED = (101, 103, 201, 202)  # collection or partition, not or not fully
_GONE = (100, 200)  # collection or partition
_GONE_WORDS = re.compile(r"partition name \S+ not found")  # a search says it without a code of its own


class MilvusVectorStore:
    """The :class:`~index.shards.vector_store.VectorStore` for more vectors than one machine holds. Connects when needed."""

    def __init__(self, address: MilvusAddress) -> None:
        self.address = address
        self._lock = Lock()
        self._connected: MilvusClient | None = None
        self._lite = False
        self._half = True  # whether new collections have half precision
        self._loaded = PartitionCache(address.max_loaded)
        self._partitions: dict[str, set[str]] = {}  # by collection, as far as they were seen
        self._kinds: dict[str, type[np.floating]] = {}  # of the vectors, by collection
        self._silent_until = 0.0  # on the monotonic clock

    def place(self, task: str, dim: int) -> str:
        partition = _partition(task)
        number, room = 0, None
        with self._asking("list its collections") as client:
            while client.has_collection(name := f"{self.address.collection}_{dim}_{number}"):
                there = client.list_partitions(name)
                if partition in there:
                    return f"{_NAME}:{name}/{partition}"
                if room is None and len(there) < _PARTITIONS:
                    room = name
                number += 1
        return f"{_NAME}:{room or name}/{partition}"

    def stage(
        self,
        folder: Path,
        entry: SegmentEntry,
        rows: Rows,
        queries: Vectors | None,
        heartbeat: Callable[[], object],
    ) -> None:
        """Without a structure: Milvus has an index of its own."""
        digest = {"sha256": _digest(rows())}
        (folder / _DIGEST).write_text(json.dumps(digest) + "\n", encoding="utf-8")

    def insert(self, entry: SegmentEntry, ids: Ids, rows: Rows) -> None:
        collection, partition = _parts(entry.place)
        shard, size = _number(entry.id), max(_REQUEST_BYTES // (4 * entry.dim), 1)
        with self._asking(f"take the vectors of task {entry.task}") as client:
            self._make(client, collection, entry.dim, partition)
        if self._count(entry) == entry.count:
            return
        with self._asking(f"take the vectors of task {entry.task}") as client:
            done = 0
            for chunk in rows():
                for start in range(0, len(chunk), size):
                    vectors = self._stored(client, collection, chunk[start : start + size].astype(np.float16))
                    here = ids[done : done + len(vectors)].tolist()
                    done += len(vectors)
                    client.upsert(
                        collection,
                        [
                            {"key": _key(entry.id, id), "id": id, "shard": shard, "vector": vector}
                            for id, vector in zip(here, vectors, strict=True)
                        ],
                        partition_name=partition,
                    )
        # Not flushed: what Milvus has acknowledged is in its log, and it allows a collection one flush in ten seconds.
        self.check(Path(), entry, "rows")

    def check(self, folder: Path, entry: SegmentEntry, depth: CheckLevel) -> None:
        name = f"shard {entry.id[:12]} of task {entry.task}"
        collection, partition = _parts(entry.place)
        if not self._has(collection, partition):
            raise ShardMissing(f"{name}: {self._named(entry)} is not there; restore it from Milvus' backup")
        if depth == "there":
            return
        count = self._count(entry)
        if count != entry.count:
            raise ShardCorrupt(
                f"{name}: {self._named(entry)} has {count} of its {entry.count} vectors; restore it from Milvus' "
                "backup"
            )
        if depth == "bytes":
            said = json.loads((folder / _DIGEST).read_text(encoding="utf-8"))["sha256"]
            task = _MilvusTask(self, [(folder, entry)], np.empty(0, np.int64))
            ids = task.ids
            found = _digest(task.vectors(ids[i : i + _MOST]) for i in range(0, len(ids), _MOST))
            if found != said:
                raise ShardCorrupt(
                    f"{name}: vectors in {self._named(entry)} were altered; restore it from Milvus' backup"
                )

    def open(self, parts: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> SearchableShard:
        return _MilvusTask(self, parts, deleted)

    def drop(self, shard: str, place: str) -> None:
        collection, partition = _parts(place)
        with self._asking(f"drop {partition}") as client:
            if not client.has_collection(collection) or not client.has_partition(collection, partition):
                return
        expression = f"shard == {_number(shard)}"
        self._loading(
            collection,
            partition,
            lambda client: client.delete(collection, filter=expression, partition_name=partition),
        )
        if self._rows(collection, partition, "id >= 0"):
            return
        with self._asking(f"drop {partition}") as client:
            self._loaded.forget(client, collection, partition, whole=self._lite)
            client.drop_partition(collection, partition)
            self._partitions.get(collection, set()).discard(partition)

    # -- for the tasks that were opened --

    def search(
        self, entry: SegmentEntry, queries: Vectors, limit: int, expression: str, consistency: str
    ) -> list[tuple[Ids, Vectors]]:
        """For each query the best rows of a task's partition, best first: ids and scores."""
        collection, partition = _parts(entry.place)
        tuning = {"IVF_SQ8": {"nprobe": 64}, "HNSW": {"ef": max(2 * limit, 128)}}.get(self.address.index, {})
        found = self._loading(
            collection,
            partition,
            lambda client: client.search(
                collection,
                data=list(self._stored(client, collection, queries)),
                filter=expression,
                limit=limit,
                search_params={"metric_type": "IP", "params": tuning},
                partition_names=[partition],
                anns_field="vector",
                consistency_level=consistency,
            ),
        )
        return [
            (
                np.array([_id(_primary(hit)) for hit in hits], np.int64),
                np.array([hit["distance"] for hit in hits], np.float32),
            )
            for hits in found
        ]

    def fetch(self, entry: SegmentEntry, expression: str, consistency: str) -> tuple[Ids, Vectors]:
        """Rows of a task's partition, in ascending order of their ids: these, and their vectors."""
        collection, partition = _parts(entry.place)
        found = self._loading(
            collection,
            partition,
            lambda client: client.query(
                collection,
                filter=expression,
                output_fields=["key", "vector"],
                partition_names=[partition],
                consistency_level=consistency,
            ),
        )
        ids = np.array([_id(row["key"]) for row in found], np.int64)
        vectors = np.array([_numbers(row["vector"]) for row in found], np.float32).reshape(-1, entry.dim)
        order = np.argsort(ids)
        return ids[order], vectors[order]

    def _count(self, entry: SegmentEntry) -> int:
        return self._rows(*_parts(entry.place), f"shard == {_number(entry.id)}")

    def _rows(self, collection: str, partition: str, expression: str) -> int:
        found = self._loading(
            collection,
            partition,
            lambda client: client.query(
                collection,
                filter=expression,
                output_fields=["count(*)"],
                partition_names=[partition],
                consistency_level="Strong",
            ),
        )
        return int(found[0]["count(*)"])

    def _has(self, collection: str, partition: str) -> bool:
        if partition in self._partitions.get(collection, ()):
            return True
        with self._asking("list its partitions") as client:
            there = set(client.list_partitions(collection) if client.has_collection(collection) else ())
        self._partitions[collection] = there
        return partition in there

    def _named(self, entry: SegmentEntry) -> str:
        return f"{entry.place.partition(':')[2]} in Milvus at {self.address.display_uri}"

    def _stored(self, client: _Patient, collection: str, vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As the collection's field wants them, and queries for it. It keeps its kind when the server is upgraded."""
        from pymilvus import DataType

        kind = self._kinds.get(collection)
        if kind is None:
            fields = client.describe_collection(collection)["fields"]
            (made,) = (field["type"] for field in fields if field["name"] == "vector")
            kind = self._kinds[collection] = np.float16 if made == DataType.FLOAT16_VECTOR else np.float32
        return np.asarray(vectors, kind)

    # -- the server --

    def _make(self, client: _Patient, collection: str, dim: int, partition: str) -> None:
        """A collection with its index, and a partition in it, where they are missing."""
        from pymilvus import DataType, MilvusClient

        if not client.has_collection(collection):
            schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=40)
            schema.add_field("id", DataType.INT64)
            schema.add_field("shard", DataType.INT64)
            kind = DataType.FLOAT16_VECTOR if self._half else DataType.FLOAT_VECTOR
            schema.add_field("vector", kind, dim=dim)
            # Without an index, which would load all of it.
            client.create_collection(collection, schema=schema, consistency_level="Bounded")
        if not client.list_indexes(collection):
            index = MilvusClient.prepare_index_params()
            kind, built = self.address.index, _BUILT[self.address.index]
            index.add_index(field_name="vector", index_type=kind, metric_type="IP", params=built)
            client.create_index(collection, index)
        if not client.has_partition(collection, partition):
            client.create_partition(collection, partition)

    def _loading(self, collection: str, partition: str, ask: Callable[[_Patient], Any]) -> Any:
        """Ask something of a partition that must be loaded. Another process may have released it: then once more."""
        from pymilvus import MilvusException

        for attempt in (1, 2):
            with (
                self._asking(f"search {partition}") as client,
                self._loaded.use(client, collection, partition, whole=self._lite),
            ):
                try:
                    return ask(client)
                except MilvusException as error:
                    if attempt == 2 or error.code not in _NOT_LOADED:
                        raise
                    self._loaded.lost(collection, partition, whole=self._lite)
        raise AssertionError("unreachable")

    @contextmanager
    def _asking(self, what: str) -> Iterator[_Patient]:
        """The client; its errors become ours, and a server that is silent is left alone for a while."""
        client = self._client()
        from grpc import FutureTimeoutError, RpcError
        from pymilvus import MilvusException

        try:
            yield _Patient(client, self.address.timeout)
        except (MilvusException, RpcError, FutureTimeoutError) as error:
            # Without its cause: the client's frames hold the token, and a log may show the variables of every frame.
            raise self._refused(error, what) from None

    def _client(self) -> MilvusClient:
        """Raises StoreUnavailable."""
        with self._lock:
            if time.monotonic() < self._silent_until:
                raise StoreUnavailable(f"Milvus at {self.address.display_uri} did not answer a moment ago")
            if self._connected is None:
                try:
                    from grpc import FutureTimeoutError, RpcError
                    from pymilvus import MilvusClient, MilvusException
                except ImportError as error:
                    raise StoreUnavailable(
                        "vectors are in Milvus, and its client is missing: pip install 'cinestrata[milvus]'"
                    ) from error
                # What goes wrong is said by our errors; the client would write each into the log a second time.
                for name in ("pymilvus", "milvus_lite"):
                    logging.getLogger(name).setLevel(logging.CRITICAL)
                try:
                    client = MilvusClient(
                        self.address.uri,
                        token=self.address.token,
                        timeout=self.address.timeout,
                        grpc_options=_ANEW,
                    )
                    version = client.get_server_version()
                except (MilvusException, RpcError, FutureTimeoutError) as error:
                    raise self._refused(error, "be reached") from None
                self._lite = version.startswith("milvus_lite")
                self._half = not self._lite and _has_half(version)
                self._connected = client
            return self._connected

    def _refused(self, error: Exception, what: str) -> Exception:
        """Our words for an error of the client, without its secrets."""
        from grpc import RpcError, StatusCode
        from pymilvus import MilvusException

        # A wrong password is to the client one more server that it cannot connect to.
        cause: Any = error.__cause__
        denied = isinstance(cause, RpcError) and cause.code() == StatusCode.UNAUTHENTICATED
        said = str(cause.details() if denied else getattr(error, "message", "") or error)
        said = " ".join(said.split())[:300]
        said = said.replace(self.address.uri, self.address.display_uri)
        if self.address.token:
            said = said.replace(self.address.token, "***")
        where = f"Milvus at {self.address.display_uri} could not {what}"
        code = error.code if isinstance(error, MilvusException) else None
        if code in _GONE or _GONE_WORDS.search(said):
            self._forget()
            return ShardMissing(f"{where}: {said}; restore it from Milvus' backup")
        if denied or "auth" in said.lower():
            return StoreUnavailable(f"{where}: {said}. Check CINESTRATA_MILVUS__TOKEN")
        if self._connected is not None and isinstance(code, int) and code != _NO_CONNECTION:  # it did answer
            return StoreUnavailable(f"{where}: {said}. See Milvus' log")
        self._connected = None
        self._forget()
        self._loaded.clear()
        self._silent_until = time.monotonic() + _BREATHER_SECONDS
        if self.address.uri.endswith(".db"):
            return StoreUnavailable(
                f"{where}: {said}. A .db file serves one process at a time; is it a file's path?"
            )
        return StoreUnavailable(f"{where}: {said}. Check that it runs, and CINESTRATA_MILVUS__URI")

    def close(self) -> None:
        """Let go of the connection; the next request makes a new one."""
        with self._lock:
            if self._connected is not None:
                self._connected.close()
                self._connected = None
            self._forget()
            self._loaded.clear()
            self._silent_until = 0.0

    def _forget(self) -> None:
        """What was seen on the server may not be so any more."""
        self._partitions.clear()
        self._kinds.clear()


class _Patient:
    """A client that waits for each answer as long as it should: by default it would try again for minutes."""

    def __init__(self, client: MilvusClient, seconds: float) -> None:
        self._client = client
        self._seconds = seconds

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(getattr(self._client, name), timeout=self._seconds * _SLOWER.get(name, 1))


class _MilvusTask(SearchableShard):
    """The :class:`~index.shards.vector_store.SearchableShard` of a partition."""

    remote = True

    def __init__(
        self, store: MilvusVectorStore, parts: Sequence[tuple[Path, SegmentEntry]], deleted: Ids
    ) -> None:
        super().__init__(parts, deleted)
        self._store = store
        self._shards = f"shard in [{', '.join(str(_number(entry.id)) for entry in self.segments)}]"

    def _found(self, queries: Vectors, k: int, exclude: Ids, among: Ids | None) -> Iterable[Sequence[Hits]]:
        queries = require_queries(queries, k, self.entry)
        hidden = np.union1d(self.deleted, exclude.astype(np.int64))
        chosen = None if among is None else np.setdiff1d(np.intersect1d(among, self.ids), hidden)
        found: list[list[Hits | None]] = [[None]] * len(queries)
        if k < _MOST:
            parts = [self._cut(queries, k, expression) for expression in self._filters(hidden, chosen)]
            found = [[part[number] for part in parts] for number in range(len(queries))]
        left = chosen
        for query, every in zip(queries, found, strict=True):
            ranked = [part for part in every if part is not None]
            if len(ranked) < len(every):
                if left is None:
                    left = np.setdiff1d(self.ids, hidden)
                ranked = [ranked_hits(left, self._scores(query, left), k)]
            yield ranked

    def _stored(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        size = min(_MOST, max(_REQUEST_BYTES // (4 * self.dim), 1))
        wanted = np.setdiff1d(ids, self.deleted)
        for start in range(0, len(wanted), size):
            asked = wanted[start : start + size]
            expression = f"{self._shards} and id in {_listed(asked)}"
            there, vectors = self._store.fetch(self.entry, expression, self._consistency())
            here = np.isin(ids, there)
            yield here, vectors[np.searchsorted(there, ids[here])]

    def _filters(self, hidden: Ids, chosen: Ids | None) -> Iterator[str]:
        """Expressions that no id meets twice, for lists that are too long for one: what is asked of each is merged."""
        if chosen is not None:
            for start in range(0, len(chosen), _MOST):
                yield f"{self._shards} and id in {_listed(chosen[start : start + _MOST])}"
        elif not len(hidden):
            yield self._shards
        else:
            pieces = [hidden[start : start + _MOST] for start in range(0, len(hidden), _MOST)]
            for number, piece in enumerate(pieces):
                after = f" and id >= {piece[0]}" if number else ""
                before = f" and id < {pieces[number + 1][0]}" if number + 1 < len(pieces) else ""
                yield f"{self._shards}{after}{before} and id not in {_listed(piece)}"

    def _cut(self, queries: Vectors, k: int, expression: str) -> list[Hits | None]:
        """For each query the best k; None where more than one answer holds are equally good."""
        found: list[Hits | None] = [None] * len(queries)
        left, limit = list(range(len(queries))), k + 1
        while left:
            limit = min(limit, _MOST)
            # Which of equal scores survive the cut is left open: look further until it is between unequal ones.
            further = []
            for start in range(0, len(left), size := max(_ANSWERS // limit, 1)):
                asked = left[start : start + size]
                consistency = self._consistency()
                answers = self._store.search(self.entry, queries[asked], limit, expression, consistency)
                for number, (ids, scores) in zip(asked, answers, strict=True):
                    if len(ids) < limit or scores[-1] < scores[k - 1]:
                        found[number] = ranked_hits(ids, scores, k)
                    else:
                        further.append(number)
            if limit == _MOST:
                break
            left, limit = further, 2 * limit
        return found

    def _scores(self, query: Vectors, ids: Ids) -> Vectors:
        """For more rows than the server ranks in one answer."""
        chunks = [ids[start : start + _MOST] for start in range(0, len(ids), _MOST)]
        return np.concatenate([np.empty(0, np.float32), *(self.vectors(chunk) @ query for chunk in chunks)])

    def _consistency(self) -> str:
        """What was written a moment ago may not have reached every replica: only then it is worth waiting for."""
        try:
            written = max(folder.stat().st_mtime for folder, _ in self._folders)
        except OSError as error:
            raise ShardMissing(f"the folder of a shard of task {self.entry.task} is missing") from error
        return "Strong" if time.time() - written < _SETTLED_SECONDS else "Bounded"

    def _ids_of(self, folder: Path, entry: SegmentEntry) -> Ids:
        name = f"shard {entry.id[:12]} of task {entry.task}"
        try:
            ids: Ids = np.load(folder / IDS, allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            raise ShardCorrupt(
                f"{name}: its ids cannot be read ({error}); restore its folder from a backup"
            ) from error
        if ids.dtype != np.int64 or ids.shape != (entry.count,):
            raise ShardCorrupt(f"{name}: {IDS} contradicts the manifest")
        return ids


def _partition(task: str) -> str:
    """Letters, digits and underscores; a task with others gets a name of its own too."""
    plain = re.sub(r"\W", "_", task, flags=re.ASCII)[:200]
    return f"t_{plain}" if plain == task else f"t_{plain}_{hashlib.sha256(task.encode()).hexdigest()[:12]}"


def _parts(place: str) -> tuple[str, str]:
    """Collection and partition. Raises ShardMissing where the place is in another store."""
    name, _, where = place.partition(":")
    collection, slash, partition = where.partition("/")
    if name != _NAME or not slash:
        raise ShardMissing(f"{place!r} is no place in Milvus; a newer version may know it")
    return collection, partition


def _has_half(version: str) -> bool:
    """Of a server; one that does not tell a number is taken for a new one."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return found is None or (int(found[1]), int(found[2])) >= _HALF_FROM


def _number(shard: str) -> int:
    return int(shard[:_DIGITS], 16)


def _key(shard: str, id: int) -> str:
    return f"{shard[:_DIGITS]}:{id}"


def _id(key: str) -> int:
    return int(key.partition(":")[2])


def _primary(hit: Mapping[str, Any]) -> str:
    """The key of what a search found. An older server does not say what its field is called: then it is ``id``."""
    return str(hit["key"] if "key" in hit else hit["id"])


def _listed(ids: Ids) -> str:
    return f"[{', '.join(map(str, ids.tolist()))}]"


def _digest(chunks: Iterable[Vectors]) -> str:
    """SHA-256 of the rows in half precision, which is what is kept."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(np.ascontiguousarray(chunk, np.float16).tobytes())
    return digest.hexdigest()


def _numbers(value: Any) -> npt.NDArray[Any]:
    """A vector as the client gives it: numbers, or the bytes of half-precision ones."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], bytes):
        value = value[0]
    return np.frombuffer(value, np.float16) if isinstance(value, bytes) else np.asarray(value)
