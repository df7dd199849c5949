"""Synthetic libraries whose domains share their words: contents and measured rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.search.search_latency import recall_by_routing, start_engine
from benchmarks.search.shared_word_cost import measure_costs
from benchmarks.search.shared_word_library import make_shared_word_library
from benchmarks.search.synthetic_library import SyntheticLibrary
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
        make_shared_word_library(
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


def test_queries_find_their_targets(libraries: list[SyntheticLibrary]) -> None:
    three = libraries[1]
    assert (three.tasks, three.vectors, len(three.queries)) == (3, 45, 9)
    engine = start_engine(three)
    assert len(engine.snapshots.current().shards) == 3
    assert recall_by_routing(engine, three.queries, ["all"])["all"] > 0.6


def test_costs_are_measured_for_each_library(libraries: list[SyntheticLibrary]) -> None:
    rows = measure_costs(libraries, rounds=3)
    assert [row.tasks for row in rows] == [1, 3]
    assert rows[0].ratio == rows[0].searched == rows[0].routing == 1
    assert all(0 < row.searched <= row.searched_all <= 1 for row in rows)
    assert all(row.bytes_per_task > 0 for row in rows)
