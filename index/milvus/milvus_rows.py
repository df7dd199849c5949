"""Format of rows in Milvus: names of partitions, keys, and digests.

::

    <collection>_<dim>_<n>     n = 0, 1, …; up to 1,000 partitions each
    └── t_<task>               one partition per task
        ├── key      VARCHAR   primary: <first 15 digits of the segment's ID>:<ID>
        ├── id       INT64     vector ID
        ├── shard    INT64     the number that these 15 hexadecimal digits represent
        └── vector   FLOAT16_VECTOR, metric IP (FLOAT_VECTOR where it is missing: milvus-lite, Milvus before 2.4)

Milvus allows 1,024 partitions in a collection and 65,536 in total (``rootCoord.maxPartitionNum``,
``rootCoord.maxGeneralCapacity``). A partition key has no such limit, but tasks would share its partitions by hash, and
could not be loaded or dropped one by one. A full collection is therefore followed by another, and the manifest records
each segment's collection: 10,000 tasks use ten.

Rows carry their segment's number, so that a task's copy, or an incomplete one, can exist next to the served rows
without being found. A search selects the segments of its generation, without their deleted IDs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Vectors
from index.errors import ShardMissing

STORE_NAME = "milvus"
MAX_LISTED_IDS = 16_384  # IDs in one filter, and results of one search
MAX_REQUEST_BYTES = 16 * 1024**2  # Milvus rejects 64 MiB

_ID_DIGITS = 15  # of a segment's ID: 60 bits, so that the number is not negative


def partition_name(task: str) -> str:
    """Name a task's partition with letters, digits and underscores, distinct for all tasks."""
    plain = re.sub(r"\W", "_", task, flags=re.ASCII)[:200]
    return f"t_{plain}" if plain == task else f"t_{plain}_{hashlib.sha256(task.encode()).hexdigest()[:12]}"


def split_place(place: str) -> tuple[str, str]:
    """Split a place into collection and partition; raises ShardMissing for a place in another store."""
    name, _, path = place.partition(":")
    collection, slash, partition = path.partition("/")
    if name != STORE_NAME or not slash:
        raise ShardMissing(f"{place!r} is not a place in Milvus")
    return collection, partition


def segment_number(segment_id: str) -> int:
    """Compute a segment's number, the value of the field ``shard``."""
    return int(segment_id[:_ID_DIGITS], 16)


def row_key(segment_id: str, id: int) -> str:
    """Build a row's primary key."""
    return f"{segment_id[:_ID_DIGITS]}:{id}"


def id_of_key(key: str) -> int:
    """Extract the vector ID from a row's primary key."""
    return int(key.partition(":")[2])


def hit_key(hit: Mapping[str, Any]) -> str:
    """Read the primary key from a search result; servers before 2.4 call the field ``id``."""
    return str(hit["key"] if "key" in hit else hit["id"])


def format_ids(ids: Ids) -> str:
    """Format IDs as a list in a filter expression."""
    return f"[{', '.join(map(str, ids.tolist()))}]"


def digest_rows(rows: Iterable[Vectors]) -> str:
    """Compute the SHA-256 of batches of vectors in half precision, as they are stored."""
    digest = hashlib.sha256()
    for batch in rows:
        digest.update(np.ascontiguousarray(batch, np.float16).tobytes())
    return digest.hexdigest()


def as_numbers(value: Any) -> npt.NDArray[Any]:
    """Parse a vector from the client: numbers, or the bytes of half-precision numbers."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], bytes):
        value = value[0]
    return np.frombuffer(value, np.float16) if isinstance(value, bytes) else np.asarray(value)
