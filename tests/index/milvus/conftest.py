"""A store whose vectors are in Milvus."""

from __future__ import annotations

from pathlib import Path

import pytest

from index.milvus.milvus_vector_store import MilvusVectorStore
from index.shard_store import ShardStore


@pytest.fixture
def store(milvus: MilvusVectorStore, tmp_path: Path) -> ShardStore:
    """An empty store that writes its vectors to Milvus."""
    return ShardStore(tmp_path / "index", remote=milvus, write_remote=True)
