"""A library of two backbones: each task is learned, continued, searched, moved and synced with its own."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cinestrata_schemas.syncs import SyncSpec
from cinestrata_schemas.tasks import RelearnSpec, TaskSpec, UpgradeSpec
from cli.commands import doctor
from models.errors import NotEnoughMemory
from service.catalog.database import dispose
from service.core.errors import Conflict, InvalidInput
from service.core.settings import settings
from service.library.deletion import delete_videos
from service.library.recall_matrix import read_recall_matrix
from service.library.release_serving import NEWEST, serve_release
from service.search.engine import SearchEngine
from service.storage import index_manifest
from service.storage.index_manifest import library_store
from service.syncs.registered_syncs import register_sync, run_sync
from service.tasks import commands, upgrades
from service.tasks.task_storage import relearn_appended_videos
from tests.claimed_probing import probe
from tests.cli.invocation import run
from tests.shared_folders import restore_or_make
from tests.trainer.worker.conftest import encode_video
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


@pytest.mark.slow  # with real backbones
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


@pytest.mark.slow  # with real backbones
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
    path = settings().media_root / "day" / "3.mp4"
    path.rename(path.with_suffix(".gone"))
    learn(upgrades.upgrade_domain(day, UpgradeSpec(backbone="small", partial=True)).id)
    partly = search()
    assert "tiny (2 domains)" in encoders()
    assert "small (1 domains)" in encoders()
    assert [{video for video, _ in answer} for answer in partly] == [
        {video for video, _ in answer} for answer in before
    ]
    assert partly[0][0][0] == "day-3"
    assert engine.report_queries("day").queries > 0
    require_same_videos(day, noon)
    upgrades.undo_upgrade(day)
    assert search() == before
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


Answers = dict[str, list[tuple[str, float]]]


@pytest.fixture
def domains(
    tmp_path: Path,
    settings_factory: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    saved_libraries: Path,
    post_videos: Callable[..., str],
) -> Iterator[dict[str, str]]:
    """IDs by name of ``day`` and ``dusk``, learned on ``tiny``, and ``night``, learned on ``small``."""
    job_environment.load_worker_backbone.cache_clear()
    settings_factory(tmp_path, backbone="tiny", frames=2, torch_threads=1, lease_seconds=600)

    def make() -> None:
        for name, method in (("day", "zero_shot"), ("night", "analytic"), ("dusk", "zero_shot")):
            backbone = "small" if name == "night" else "tiny"
            learn(post_videos(name, backbone=backbone, method=method, settings={}, tests=0))

    restore_or_make(saved_libraries / "mixed", make)
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(settings().data_dir))  # a command may change it
    yield {task.name: task.id for task in commands.list_tasks()}
    dispose()
    job_environment.load_worker_backbone.cache_clear()


def _answers() -> Answers:
    """Search by texts, by a clip, and by videos, and check which domains are compared."""
    engine = SearchEngine(settings())
    engine.snapshots.refresh()
    ready = engine.snapshots.readiness()
    assert (engine.snapshots.last_error, ready.degraded) == (None, {})
    answers: dict[str, Any] = {text: engine.search(text, k=24, routes="all") for text in TEXTS[:3]}
    answers["clip"] = clip = engine.search_clip(BytesIO(encode_video("night 1", 1)), k=24)
    assert (clip.results[0].video_id, clip.results[0].score) == ("night-1", pytest.approx(1, abs=0.02))
    assert {"day", "dusk", "night"} <= set(clip.searched) == {result.task for result in clip.results}
    answers["similar"] = similar = engine.search_similar("day-1", k=24, scope="all")
    assert similar.searched == ["day", "dusk"]
    assert "night" in similar.not_compared
    answers["similar in its domain"] = engine.search_similar("night-1", k=24)
    with pytest.raises(Conflict, match="can't be compared with those of 'night'"):
        engine.search_similar("night-1", k=24, scope="all")
    engine.close()
    return {
        name: [(result.video_id, result.score) for result in answer.results]
        for name, answer in answers.items()
    }


def _run(*arguments: object) -> str:
    outcome = run(*arguments)
    dispose()
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


@pytest.mark.slow
def test_backup_and_export(domains: dict[str, str], tmp_path: Path) -> None:
    before = _answers()
    exported = json.loads(_run("export", tmp_path / "tables", "--json"))
    assert {(row["domain"], row["videos"]) for row in exported} == {("day", 6), ("dusk", 6), ("night", 6)}
    assert all(f"{row['domain']} number 5 said 0" in Path(row["table"]).read_text() for row in exported)
    _run("snapshot", tmp_path / "backup.tar")
    _run("restore", tmp_path / "backup.tar", "--data", tmp_path / "other")
    assert settings().data_dir == tmp_path / "other"
    require_same_videos(*domains.values())
    assert "all checksums correct" in doctor.check_index(settings())
    assert _answers() == before


@pytest.mark.slow
def test_sync_append_and_relearning_use_the_encoder_of_the_domain(domains: dict[str, str]) -> None:
    dims = {name: _dim(task) for name, task in domains.items()}
    assert dims == {"day": dims["dusk"], "dusk": dims["dusk"], "night": 512} != dict.fromkeys(domains, 512)
    folder = settings().media_root / "films"
    folder.mkdir()
    for color in ("red", "blue"):
        (folder / f"{color} evening.mp4").write_bytes(encode_video(color, 1))
    spec = {"name": "night", "source": "films", "every_seconds": 900, "captions_from_names": True}
    run_sync(register_sync(SyncSpec.model_validate(spec)).id)
    (synced,) = (task.id for task in commands.list_tasks() if task.into)
    append_job.run_append_job(probe(synced).id)
    append_job.run_append_job(post_append(domains["day"], {"green": "green"}, ["a green morning"]))
    assert {name: _dim(task) for name, task in domains.items()} == dims
    assert [commands.get_task(domains[name]).counts.appended for name in ("night", "day")] == [2, 1]
    relearned = probe(relearn_appended_videos(domains["night"], RelearnSpec(name="evening")).task.id).id
    learn(relearned)
    assert (commands.get_task(relearned).backbone, _dim(relearned)) == ("small", 512)
    require_same_videos(*domains.values(), relearned)
    after = _answers()
    assert [after[text][0][0] for text in TEXTS[:2]] == ["day-3", "night-4"]
    assert len(after[TEXTS[2]]) == 21


def _dim(task: str) -> int:
    (dim,) = {len(vector) for vector in shard_vectors(task).values()}
    return dim


@pytest.mark.slow
def test_moved_to_milvus(
    domains: dict[str, str], milvus_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a collection for each dimension; appends go to that of the domain."""
    pytest.importorskip("milvus_lite")
    before = _answers()
    monkeypatch.setenv("CINESTRATA_MILVUS__URI", milvus_server.uri)
    monkeypatch.setenv("CINESTRATA_VECTOR_STORE", "milvus")
    monkeypatch.setattr(index_manifest, "MILVUS_TIMEOUT_SECONDS", 30)  # a busy machine answers late
    settings.cache_clear()
    _run("move", "--to", "milvus")
    for name, hits in _answers().items():
        assert dict(hits) == pytest.approx(dict(before[name]), abs=1e-4)
    append_job.run_append_job(post_append(domains["night"], {"green": "green"}, ["a green morning"]))
    places = _places(domains)
    assert places["day"] == places["dusk"] != places["night"]
    assert all(len(collections) == 1 for collections in places.values())
    assert "new-green" in dict(_answers()["similar in its domain"])
    _run("move", "--to", "faiss")
    assert _places(domains) == {name: {""} for name in domains}


def _places(domains: dict[str, str]) -> dict[str, set[str]]:
    """The collections of each domain's segments; empty for files."""
    manifest = library_store(settings()).manifest()
    return {
        name: {entry.place.partition("/")[0] for entry in manifest.segments(task)}
        for name, task in domains.items()
    }


@pytest.mark.parametrize("prefix", ["open_clip:ViT-B-32/", "transformers:"])
def test_weights_that_do_not_fit_into_memory_are_refused_with_numbers(prefix: str, tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    with weights.open("wb") as file:
        file.truncate(2**42)
    name = f"{prefix}{tmp_path if prefix == 'transformers:' else weights}"
    with pytest.raises(
        NotEnoughMemory, match=r"needs at least 8796\.09 GB more memory, but only .* GB is free"
    ):
        job_environment.load_worker_backbone(name, 2, 1)
