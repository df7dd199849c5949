"""Synthetic libraries whose domains share their words: contents and measured rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.search.search_timing import measure_recall, start_engine
from benchmarks.search.synthetic_library import SyntheticLibrary, make_library
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from service.core.settings import Settings


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.set_num_threads(1)
    return load_backbone("small", frames=2)


@pytest.fixture
def libraries(
    tmp_path: Path, settings_factory: Callable[..., Settings], backbone: Backbone
) -> list[SyntheticLibrary]:
    """Libraries of one and three domains in one catalog."""
    settings_factory(tmp_path)
    return [
        make_library(
            tmp_path / f"of-{tasks}",
            backbone,
            tasks=tasks,
            videos=15,
            queries=9,
            first_id=first_id,
            seed=tasks,
        )
        for tasks, first_id in ((1, 1), (3, 16))
    ]


@pytest.mark.slow
def test_queries_find_their_targets(libraries: list[SyntheticLibrary]) -> None:
    three = libraries[1]
    assert (three.tasks, three.vectors, len(three.queries)) == (3, 45, 9)
    engine = start_engine(three)
    shards = engine.snapshots.current().shards.values()
    assert [shard.count for shard in shards] == [15] * 3
    assert len({part.release for shard in shards for part in shard.segments}) == 3
    assert measure_recall(engine, three.queries, "all") > 0.6
