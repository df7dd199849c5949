"""Select the vector store from the settings: the index folder, or Milvus if configured."""

from __future__ import annotations

from functools import lru_cache

from index.milvus.milvus_address import MilvusAddress
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.scanning.search_options import EXACT_ROWS, AnnPolicy, Device
from index.shard_store import ShardStore
from service.core.settings import Settings

MILVUS_TIMEOUT_SECONDS = 10.0


def library_store(configured: Settings, *, device: Device = "cpu") -> ShardStore:
    """Open the library's shard store. It connects to a server only when a row is read.

    Args:
        device: Device that scans shard files.

    Raises:
        DeviceMissing: The device does not exist.
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
                timeout=MILVUS_TIMEOUT_SECONDS,
            )
        )
    return ShardStore(
        configured.index_dir,
        policy=AnnPolicy(exact_rows=EXACT_ROWS),
        device=device,
        remote=remote,
        write_remote=configured.vector_store == "milvus",
    )


@lru_cache(maxsize=8)
def _milvus(address: MilvusAddress) -> MilvusVectorStore:
    """Open the connection to an address; one per process."""
    return MilvusVectorStore(address)
