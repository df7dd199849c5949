"""The made-up libraries that searches are timed with: what is in them, and that it is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sqlalchemy import func, select

from benchmarks.search.search_latency import bound, compare, recall_of_routes, serve
from benchmarks.search.synthetic_library import Library, make_library
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
) -> tuple[Library, Library]:
    """One domain, and three with as many videos, in one catalog."""
    settings_factory(tmp_path)
    one = make_library(tmp_path / "one", backbone, tasks=1, vectors=50, captions=12)
    three = make_library(tmp_path / "three", backbone, tasks=3, vectors=50, captions=24, first_id=51, seed=1)
    return one, three


def test_every_domain_is_laid_down_with_a_release_of_its_own(libraries: tuple[Library, Library]) -> None:
    one, three = libraries
    service = serve(three)
    serving = service.snapshots.current()
    assert len(serving.shards) == 3
    assert sorted(shard.count for shard in serving.shards.values()) == [16, 17, 17]
    assert len({part.release for shard in serving.shards.values() for part in shard.segments}) == 3
    with session_scope() as session:
        assert session.scalar(select(func.count()).select_from(Task)) == 4
        assert session.scalars(select(Video.vector_id).order_by(Video.vector_id)).all() == [*range(1, 101)]
    assert len(one.asked) == 12
    assert len({asked.text for asked in three.asked}) == len({asked.sought for asked in three.asked}) == 24
    assert three.bytes == 50 * 128 * 2


def test_what_is_asked_is_found_and_told_apart_by_its_words(libraries: tuple[Library, Library]) -> None:
    _, three = libraries
    service = serve(three)
    recalls = recall_of_routes(service, three.asked, ["auto", "all"])
    assert recalls["all"] > 0.9
    assert recalls["auto"] >= recalls["all"]
    own = [service.search(asked.text, 1).results[0].task_id for asked in three.asked]
    right = [
        task
        for asked in three.asked
        for task, shard in service.snapshots.current().shards.items()
        if asked.sought in shard.ids
    ]
    assert sum(map(str.__eq__, own, right)) > 0.9 * len(own)


def test_both_are_asked_in_turns_each_its_own_queries(
    libraries: tuple[Library, Library], backbone: Backbone
) -> None:
    one, three = libraries
    service, heard = serve(three), []

    def ask(text: str) -> None:
        heard.append(text)

    texts = [(f"a {n}", f"b {n}") for n in range(26)]
    found = compare(ask, lambda text: (heard.append(text), service.search(text))[1], texts, rounds=2)
    assert heard == [text for pair in texts for text in pair]
    assert found.first.tasks == 1
    assert 1 <= found.second.tasks <= 3
    assert found.p99_ratio > 0
    bound(one, backbone)("a taxi")
    with pytest.raises(ValueError, match="unpack"):
        bound(three, backbone)
