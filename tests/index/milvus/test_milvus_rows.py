"""Names, places and addresses in Milvus."""

from __future__ import annotations

import pytest

from index.errors import ShardMissing
from index.milvus.milvus_address import MilvusAddress
from index.milvus.milvus_partitions import partition_name, split_place

pytest.importorskip("milvus_lite")


def test_partition_names_are_distinct() -> None:
    names = ["tsk_1", "tsk 1", "tsk-1", "ü", "x" * 300, "x" * 301]
    made = [partition_name(name) for name in names]
    assert made[0] == "t_tsk_1"
    assert len(set(made)) == len(names)
    assert all(len(name) <= 255 and name.isascii() and name.isidentifier() for name in made)


@pytest.mark.parametrize("place", ["", "files", "milvus:", "milvus:a", "other:a/b", "milvus2:a/b"])
def test_place_of_other_store_raises(place: str) -> None:
    with pytest.raises(ShardMissing, match="not a place in Milvus"):
        split_place(place)


def test_unknown_index_raises() -> None:
    with pytest.raises(ValueError, match="choose one of FLAT, IVF_SQ8, HNSW"):
        MilvusAddress("x.db", index="TREE")  # type: ignore[arg-type]
