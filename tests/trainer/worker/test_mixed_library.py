"""A library of two backbones: each task is learned, continued and appended to with its own, and searched with both."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cinestrata_schemas.tasks import TaskSpec, UpgradeSpec
from service.core.errors import InvalidInput
from service.core.settings import settings
from service.library.deletion import delete_videos
from service.library.recall_matrix import read_recall_matrix
from service.library.release_serving import NEWEST, serve_release
from service.search.engine import SearchEngine
from service.tasks import commands, upgrades
from tests.trainer.worker.library_state import (
    call_before,
    learn,
    open_store,
    post_append,
    require_same_videos,
    shard_vectors,
)
from trainer.published_library import Library
from trainer.worker import append_job, job_environment, learning_job

TEXTS = ["day number 3 said 0", "night number 4 said 0", "a dark street", "number 2"]


@pytest.fixture
def library(tmp_path: Path, settings_factory: Callable[..., Any]) -> Iterator[Any]:
    """Settings of an empty library whose new domains use ``tiny`` unless they name another backbone."""
    job_environment.load_worker_backbone.cache_clear()
    yield settings_factory(tmp_path, backbone="tiny", frames=2, torch_threads=1, lease_seconds=600)
    job_environment.load_worker_backbone.cache_clear()


def test_backbones_of_a_library_are_learned_searched_and_appended_to_separately(
    library: Any, post_videos: Callable[..., str]
) -> None:
    analytic = {"method": "analytic", "settings": {}, "tests": 0, "videos": 8}
    day = post_videos("day", **analytic)
    learn(day)
    files = {path: path.read_bytes() for path in settings().index_dir.glob("*/*/*")}
    night = post_videos("night", backbone="small", **analytic)
    assert (commands.get_task(day).backbone, commands.get_task(night).backbone) == ("tiny", "small")
    learn(night)
    noon = post_videos("noon", **analytic)
    learn(noon)
    assert {path: path.read_bytes() for path in files} == files
    first, second = Library(open_store()).lineages
    assert [task.task_id for task in first.tasks] == [day, noon]
    assert [task.task_id for task in second.tasks] == [night]

    engine = SearchEngine(settings())
    engine.snapshots.refresh()
    assert engine.snapshots.readiness().checks["encoders"] == "tiny (2 domains), small (1 domains)"
    answers = [engine.search(text, k=24, routes="all") for text in TEXTS]
    for answer in answers:
        assert {result.task for result in answer.results} == {"day", "night", "noon"}
        assert answer.degraded == {}
    assert answers[1].results[0].task == "night"
    dims = {task: len(next(iter(shard_vectors(task).values()))) for task in (day, night, noon)}
    assert dims[day] == dims[noon]

    for domain in (day, night):
        before = set(shard_vectors(domain))
        append_job.run_append_job(post_append(domain, {f"{domain}-red": "red"}, ["a red sky"]))
        assert commands.get_task(domain).counts.appended == 1
        (added,) = set(shard_vectors(domain)) - before
        assert len(shard_vectors(domain)[added]) == dims[domain]
    require_same_videos(day, night, noon)
    engine.snapshots.refresh()
    assert engine.search("a red sky", task="night").results[0].video_id.endswith("red")
    engine.close()

    serve_release(next(iter(open_store().manifest().releases)))
    restarted = SearchEngine(settings())
    restarted.snapshots.refresh()
    assert {result.task for result in restarted.search(TEXTS[1], k=24).results} == {"day"}
    serve_release(NEWEST)
    restarted.snapshots.refresh()
    assert {result.task for result in restarted.search(TEXTS[1], k=24).results} == {"day", "night", "noon"}
    restarted.close()


def test_upgraded_domain_is_searched_with_its_new_backbone(
    library: Any, post_videos: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old shard answers until the upgrade is published, and again after it is undone."""
    analytic = {"method": "analytic", "settings": {}, "tests": 0, "videos": 8}
    day, noon = post_videos("day", **analytic), post_videos("noon", **analytic)
    for task in (day, noon):
        learn(task)
    engine = SearchEngine(settings())

    def search() -> list[list[tuple[str, float]]]:
        engine.snapshots.refresh()
        ready = engine.snapshots.readiness()
        assert (engine.snapshots.last_error, ready.tasks, ready.degraded) == (None, 2, {})
        answers = [engine.search(text, k=24, routes="all") for text in TEXTS]
        return [[(result.video_id, result.score) for result in answer.results] for answer in answers]

    def encoders() -> str:
        return engine.snapshots.readiness().checks["encoders"]

    before, during = search(), list[Any]()
    upgrade = upgrades.upgrade_domain(day, UpgradeSpec(backbone="small")).id
    with monkeypatch.context() as patch:
        call_before(patch, learning_job, "evaluate_task", lambda: during.append(search()))
        view = learn(upgrade)
    assert during == [before]
    assert view.progress.upgrade is not None
    assert view.progress.upgrade.queries is not None
    after = search()
    assert encoders() in ("tiny (1 domains), small (1 domains)", "small (1 domains), tiny (1 domains)")
    assert [{video for video, _ in answer} for answer in after] == [
        {video for video, _ in answer} for answer in before
    ]
    assert after != before
    assert after[0][0][0] == "day-3"
    matrix = read_recall_matrix()
    assert [cell is not None for row in matrix.matrix_local[-1:] for cell in row] == [True, True], (
        "carried over"
    )
    append_job.run_append_job(post_append(noon, {"red": "red"}, ["a red sky"]))
    assert commands.get_task(noon).counts.appended == 1
    learn(upgrades.upgrade_domain(noon, UpgradeSpec(backbone="small")).id)
    assert len(search()[0]) == 17
    assert encoders() == "small (2 domains)"
    assert [[task.task_id for task in each.tasks] for each in Library(open_store()).lineages] == [
        [day, noon],
        [day, noon],
    ]
    for task in (noon, day):
        upgrades.undo_upgrade(task)
        search()
    delete_videos(["new-red"])
    assert search() == before
    assert encoders() == "tiny (2 domains)"
    learn(post_videos("dusk", backbone="small", **analytic))
    engine.snapshots.refresh()
    assert engine.snapshots.readiness().tasks == 3
    engine.close()
    require_same_videos(day, noon)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smal", "unknown"),
        ("transformers:someone/model", "Only the server's configuration"),
        ("open_clip:ViT-B-32//etc/passwd", "Only the server's configuration"),
    ],
)
def test_backbone_that_cannot_be_used_is_refused(library: Any, name: str, message: str) -> None:
    (settings().media_root / "a.mp4").write_bytes(b"")
    spec = TaskSpec.model_validate({"name": "day", "videos": [{"uri": "a.mp4"}], "backbone": name})
    with pytest.raises(InvalidInput, match=message) as refused:
        commands.create_task(spec)
    assert [error.field for error in refused.value.errors] == ["backbone"]


def test_worker_drops_its_backbone_before_it_loads_another(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = weakref.ref(job_environment.load_worker_backbone("tiny", 2, 1))
    alive: list[bool] = []

    def record_load(name: str, frames: int | None) -> Any:
        gc.collect()
        alive.append(first() is not None)
        return SimpleNamespace(to=lambda device: name)

    monkeypatch.setattr(job_environment, "load_backbone", record_load)
    assert job_environment.load_worker_backbone("small", 2, 1) == "small"
    assert job_environment.load_worker_backbone("small", 2, 1) == "small"
    assert alive == [False]
