"""Opening of shards for tests."""

from __future__ import annotations

from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from index.shards.searchable_shard import SearchableShard


def open_shard_of(store: ShardStore, task: str = "a") -> SearchableShard:
    """The shard of a task in a store without degraded shards."""
    snapshot = IndexSnapshot.open(store)
    assert snapshot.degraded == {}
    return snapshot.shard(task, fingerprint=f"encoder of {task}")
