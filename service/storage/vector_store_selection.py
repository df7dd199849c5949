"""Where this installation keeps its vectors: the index folder, and Milvus where one is set."""

from __future__ import annotations

from functools import lru_cache

from index.milvus.milvus_address import MilvusAddress
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.scanning.search_options import AnnPolicy, Device
from index.shard_store import ShardStore
from service.core.settings import Settings

__all__ = ["library_store"]


def library_store(configured: Settings, *, device: Device = "cpu") -> ShardStore:
    """The index folder, and who holds the rows of its shards. Connects to nothing until a row is asked for.

    Args:
        device: where files are searched.

    Raises:
        DeviceMissing: the device is not there.
    """
    remote = None
    if configured.milvus.uri:
        token = configured.milvus.token
        remote = _milvus(
            MilvusAddress(
                uri=configured.milvus.uri,
                token=token.get_secret_value() if token else "",
                collection=configured.milvus.collection,
                index=configured.milvus.index,
                max_loaded=configured.milvus.max_loaded,
                timeout=configured.milvus.timeout_seconds,
            )
        )
    return ShardStore(
        configured.index_dir,
        max_mapped_bytes=configured.open_bytes,
        policy=AnnPolicy(exact_rows=configured.exact_rows),
        device=device,
        remote=remote,
        write_remote=configured.vector_store == "milvus",
    )


@lru_cache(maxsize=8)
def _milvus(address: MilvusAddress) -> MilvusVectorStore:
    """One connection for each address in a process."""
    return MilvusVectorStore(address)
