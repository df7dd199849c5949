"""Synthetic libraries of the latency benchmark: contents and search results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sqlalchemy import func, select

from benchmarks.search.search_latency import (
    measure_recall,
    start_engine,
)
from benchmarks.search.synthetic_library import SyntheticLibrary, make_library
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.core.settings import Settings


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.set_num_threads(1)
    return load_backbone("tiny")


@pytest.fixture
def libraries(
    tmp_path: Path, settings_factory: Callable[..., Settings], backbone: Backbone
) -> tuple[SyntheticLibrary, SyntheticLibrary]:
    """One domain, and three with as many videos, in one catalog."""
    settings_factory(tmp_path)
    one = make_library(tmp_path / "one", backbone, tasks=1, vectors=50, captions=12)
    three = make_library(tmp_path / "three", backbone, tasks=3, vectors=50, captions=24, first_id=51, seed=1)
    return one, three


def test_every_task_has_a_shard_and_a_pinned_release(
    libraries: tuple[SyntheticLibrary, SyntheticLibrary],
) -> None:
    one, three = libraries
    service = start_engine(three)
    snapshot = service.snapshots.current()
    assert len(snapshot.shards) == 3
    assert sorted(shard.count for shard in snapshot.shards.values()) == [16, 17, 17]
    assert len({part.release for shard in snapshot.shards.values() for part in shard.segments}) == 3
    with session_scope() as session:
        assert session.scalar(select(func.count()).select_from(Task)) == 4
        assert session.scalars(select(Video.vector_id).order_by(Video.vector_id)).all() == [*range(1, 101)]
    assert len(one.queries) == 12
    assert (
        len({query.text for query in three.queries}) == len({query.target for query in three.queries}) == 24
    )


def test_queries_find_their_targets_and_routing_selects_the_task(
    libraries: tuple[SyntheticLibrary, SyntheticLibrary],
) -> None:
    _, three = libraries
    service = start_engine(three)
    recall = measure_recall(service, three.queries, "all")
    assert recall > 0.9
    assert measure_recall(service, three.queries, "auto") >= recall
    own = [service.search(query.text, 1).results[0].task_id for query in three.queries]
    right = [
        task
        for query in three.queries
        for task, shard in service.snapshots.current().shards.items()
        if query.target in shard.ids
    ]
    assert sum(map(str.__eq__, own, right)) > 0.9 * len(own)
