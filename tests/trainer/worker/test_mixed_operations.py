"""What users do with a library works on each of its encoders: backups, exports, moves, syncs and searches by video."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cinestrata_schemas.syncs import SyncSpec
from cinestrata_schemas.tasks import RelearnSpec
from cli.commands import doctor
from service.catalog.database import dispose
from service.core.errors import Conflict
from service.core.settings import settings
from service.search.engine import SearchEngine
from service.storage import index_manifest
from service.storage.index_manifest import library_store
from service.syncs.registered_syncs import register_sync, run_sync
from service.tasks import commands
from service.tasks.task_storage import relearn_appended_videos
from tests.claimed_probing import probe
from tests.cli.invocation import run
from tests.trainer.worker.conftest import encode_video
from tests.trainer.worker.library_state import learn, post_append, require_same_videos, shard_vectors
from trainer.worker import append_job, job_environment

TEXTS = ["day number 3 said 0", "night number 4 said 0", "a dark street"]
Answers = dict[str, list[tuple[str, float]]]


@pytest.fixture
def domains(
    tmp_path: Path,
    settings_factory: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    saved_libraries: Path,
    request: pytest.FixtureRequest,
) -> Iterator[dict[str, str]]:
    """IDs by name of ``day`` and ``dusk``, learned on ``tiny``, and ``night``, learned on ``small``."""
    job_environment.load_worker_backbone.cache_clear()
    settings_factory(tmp_path, backbone="tiny", frames=2, torch_threads=1, lease_seconds=600)
    saved = saved_libraries / "mixed"
    if saved.exists():
        dispose()
        shutil.rmtree(settings().data_dir)
        shutil.copytree(saved, settings().data_dir)
    else:
        post_videos = request.getfixturevalue("post_videos")
        for name, method in (("day", "zero_shot"), ("night", "analytic"), ("dusk", "zero_shot")):
            backbone = "small" if name == "night" else "tiny"
            learn(post_videos(name, backbone=backbone, method=method, settings={}, tests=0))
        dispose()
        shutil.copytree(settings().data_dir, saved)
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
    answers: dict[str, Any] = {text: engine.search(text, k=24, routes="all") for text in TEXTS}
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
