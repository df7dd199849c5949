"""Calibration by appended captions, and domains whose captions are all learned and measured with a fold."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from cinestrata_schemas.search import QueryReport
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from models.releases.release_state import MEASURED, MeasuredFold, caption_digest
from models.routing.confidence_model import ConfidenceModel
from service.catalog.database import CatalogReads, dispose, session_scope
from service.catalog.domain_videos import read_calibration
from service.catalog.tables import Task, Video
from service.core.settings import settings
from service.library.recall_matrix import read_recall_matrix
from service.search import explanations
from service.search.catalog_read_cache import CatalogReadCache
from service.search.explanations import QueryReports
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.snapshot_loading import load_snapshot, with_current_confidence
from service.tasks.lifecycle import AppendPublication
from tests.trainer.worker.library_state import (
    call_before,
    current_release,
    die_after,
    die_before,
    expire_leases,
    interrupt,
    learn,
    open_store,
    post_append,
    recall_cells,
    run_append,
    run_in_process,
)
from trainer import release_calibration
from trainer.task_pipeline import HeldOutVideos
from trainer.worker import append_job, job_environment, learning_job

pytestmark = pytest.mark.usefixtures("library")

COLORS = ("red", "blue", "green", "gray", "pink")
CAPTIONS = 4  # of each video: five videos have enough captions for a model


def append(
    domain: str,
    monkeypatch: pytest.MonkeyPatch,
    colors: Sequence[str] = COLORS,
    min_captions: int = len(COLORS),
) -> str:
    """Return the ID of a probed append of captioned videos."""
    monkeypatch.setattr(append_job, "MIN_CAPTIONS", min_captions)
    captions = [f"the {{}} video number {number}" for number in range(CAPTIONS)]
    return post_append(domain, {color: color for color in colors}, captions)


def load_served() -> SearchSnapshot:
    return load_snapshot(IndexSnapshot.open(open_store()), lambda _: job_environment.task_backbone(""))


def served_captions() -> int | None:
    """Count the captions behind the confidence model of a new search snapshot; None without a model."""
    snapshot = load_served()
    model = _confidence_model(snapshot)
    return model.captions if model else None


def _confidence_model(snapshot: SearchSnapshot) -> ConfidenceModel | None:
    return snapshot.distinct_lineages[0].confidence_model


def test_appended_captions_calibrate_searches_and_later_releases(
    learned_task: str, post_videos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert served_captions() is None  # four training captions are too few
    task = append(learned_task, monkeypatch)
    assert run_append(task).counts.appended == len(COLORS)
    assert served_captions() == len(COLORS) * CAPTIONS
    assert current_release().confidence is None  # a release never changes
    learn(post_videos("night", videos=2, tests=0))
    fitted = current_release().confidence
    assert fitted is not None
    assert fitted.captions == len(COLORS) * CAPTIONS + 1  # a derived test split calibrates, too
    assert served_captions() == fitted.captions


def test_several_small_appends_calibrate_searches(learned_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for colors, captions in ((COLORS[:3], None), (COLORS[3:], len(COLORS) * CAPTIONS)):
        run_append(append(learned_task, monkeypatch, colors))
        assert served_captions() == captions


@pytest.mark.slow
def test_release_that_is_served_again_has_the_model_of_its_appends(
    learned_task: str, post_videos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = open_store().manifest().release
    run_append(append(learned_task, monkeypatch))
    learn(post_videos("night", videos=2, tests=0))
    run_append(append(learned_task, monkeypatch, ["white"], min_captions=1))
    assert served_captions() == (len(COLORS) + 1) * CAPTIONS + 1
    open_store().serve(release)
    assert served_captions() == len(COLORS) * CAPTIONS


def test_model_applies_from_its_generation_unless_the_append_failed(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = append(learned_task, monkeypatch)
    before = open_store().manifest()
    run_append(task)
    after, release = open_store().manifest(), before.release or ""
    with session_scope(write=True) as session:
        assert read_calibration(session, release, before.generation) is None
        assert read_calibration(session, release, after.generation) is not None
        assert read_calibration(session, "other", after.generation) is None
        session.get_one(Task, task).state = "failed"
        session.flush()
        assert read_calibration(session, release, after.generation) is None


def test_running_server_uses_the_model_of_a_resumed_publication(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resumed attempt stores its model for a generation that servers have loaded already."""
    task = append(learned_task, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(append_job, "_measure", lambda *_: append_job.AppendMeasurement())
        patch.setattr(AppendPublication, "complete", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_append(task)
    served = load_served()
    assert (_confidence_model(served), with_current_confidence(served)) == (None, None)
    run_append(task)
    assert load_served().generation == served.generation
    fresh = with_current_confidence(served)
    assert fresh is not None
    assert _confidence_model(fresh) is not None
    assert _confidence_model(fresh) == _confidence_model(load_served())
    assert with_current_confidence(fresh) is None


@pytest.mark.slow
def test_model_is_fitted_to_the_release_of_the_publication(
    learned_task: str, post_videos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that is published during the embedding is calibrated, and keeps the models of other appends."""
    task = append(learned_task, monkeypatch)
    call_before(
        monkeypatch, append_job, "embed_shared", lambda: learn(post_videos("night", videos=2, tests=0))
    )
    assert run_append(task).state == "ready"
    assert served_captions() == len(COLORS) * CAPTIONS + 1


def test_failed_measurement_does_not_fail_the_append(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = append(learned_task, monkeypatch)

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no model")

    monkeypatch.setattr(append_job, "fit_library_confidence", fail)
    view = run_append(task)
    assert (view.state, view.counts.appended, served_captions()) == ("ready", len(COLORS), None)


Post = Callable[..., str]


def post_analytic(post_videos: Post, name: str, **fields: Any) -> str:
    return post_videos(name, videos=10, method="analytic", settings={}, **({"tests": 0} | fields))


@pytest.mark.slow
def test_worker_that_keeps_what_it_has_read_learns_as_a_new_one(
    post_videos: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("day", "night"):
        learn(post_analytic(post_videos, name))
    newest = post_analytic(post_videos, "noon")
    dispose()
    shutil.copytree(settings().data_dir, tmp_path / "saved")
    learn(newest)
    manifest, cells = open_store().manifest(), {key: cell.r1 for key, cell in recall_cells().items()}
    dispose()
    shutil.rmtree(settings().data_dir)
    shutil.copytree(tmp_path / "saved", settings().data_dir)
    monkeypatch.setattr(job_environment, "_last", None)
    learn(newest)
    assert open_store().manifest().releases == manifest.releases
    assert {key: cell.r1 for key, cell in recall_cells().items()} == cells


def vector_ids(task: str, split: str) -> list[int]:
    with session_scope() as session:
        query = select(Video.vector_id).where(Video.task_id == task, Video.effective_split == split)
        return sorted(session.scalars(query))


def newest_fold() -> MeasuredFold:
    fold = current_release().fold
    assert fold is not None
    return fold


def test_captions_of_the_fold_are_learned_and_measured_without_being_learned(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[Any] = []
    original = release_calibration._open_part

    def record(part: Any, *args: Any) -> Any:
        opened = original(part, *args)
        parts.append(opened)
        return opened

    monkeypatch.setattr(release_calibration, "_open_part", record)
    task = post_analytic(post_videos, "day")
    view = learn(task)
    assert (view.held_out, view.counts.train, view.counts.test) == ("cross_fitted", 10, 0)
    state, fold = current_release(), newest_fold()
    assert fold.videos.tolist() == vector_ids(task, "fold")
    assert len(fold.videos) == 2
    solution, encoder = parts[-1]  # the fold is learned last
    with session_scope() as session:
        texts = [
            session.scalars(select(Video.captions).where(Video.vector_id == video)).one()[0]
            for video in fold.videos.tolist()
        ]
    assert fold.captions.tolist() == [caption_digest(text) for text in texts]
    vectors = encoder.encode(texts, [task], "pinned")[:, 0]
    np.testing.assert_allclose(fold.queries, vectors, atol=1e-3)
    assert fold.ids.tolist() == sorted([*vector_ids(task, "fold"), *vector_ids(task, "train")])
    # The release has learned ten captions, and the solution eight of them.
    assert state.tensors["sums.count"] == 10
    assert solution.tensors["sums.count"] == 8
    assert state.tensors["evidence.freedom"] == 9
    assert state.tensors[f"{MEASURED}evidence.freedom"] == 7
    assert not np.array_equal(state.tensors["query.caption_mean"], fold.routing["query.caption_mean"])
    assert not set(state.profiles.tokens.tolist()) < set(fold.tokens.tolist())
    assert recall_cells()[1, 1, "pinned", "local"].queries == 2
    assert read_recall_matrix().held_out == ["cross_fitted"]


@pytest.mark.slow
def test_later_rows_measure_a_domain_with_the_kept_vectors(post_videos: Post) -> None:
    first = post_analytic(post_videos, "day")
    learn(first)
    before = recall_cells()
    learn(post_analytic(post_videos, "night"))
    cells = recall_cells()
    for gallery in ("local", "local_all"):
        assert cells[2, 1, "pinned", gallery].r1 == before[1, 1, "pinned", gallery].r1
        assert cells[2, 1, "pinned", gallery].meanr == before[1, 1, "pinned", gallery].meanr
    with session_scope(write=True) as session:  # an edited caption has no vector
        session.get_one(Video, vector_ids(first, "fold")[0]).captions = ["another caption"]
    learn(post_analytic(post_videos, "dusk"))
    assert recall_cells()[3, 1, "pinned", "local"].queries == 1


def test_given_test_videos_are_not_learned(post_videos: Post) -> None:
    task = post_analytic(post_videos, "day", tests=2)
    view = learn(task)
    assert (view.held_out, view.counts.train, view.counts.test) == ("given", 8, 2)
    state = current_release()
    assert state.fold is None
    assert state.tensors["sums.count"] == 8


def test_queries_outside_of_a_fold_are_not_measured() -> None:
    held = HeldOutVideos.from_captions([(1, ["one"]), (2, ["two"]), (3, ["three"])])
    assert held.measured_by(None) is held
    empty: Any = np.empty((0, 4), np.float16)
    ids = np.array([1, 3])
    digests = np.array([caption_digest("one"), caption_digest("before an edit")])
    fold = MeasuredFold(ids, digests, empty, ids, empty, ids.astype(np.int32), np.empty(0, np.float32), {})
    measured = held.measured_by(fold)
    assert measured.ids.tolist() == [1, 3]
    assert [query.text for query in measured.queries] == ["one"]


@pytest.mark.slow
def test_killed_job_has_the_same_fold_after_it_resumes(post_videos: Post) -> None:
    """Releases are named by their content, so a second attempt writes the release of the first one."""
    task = post_analytic(post_videos, "day")
    assert run_in_process(learning_job.run_learning_job, task, die_before(ShardStore, "write_shard")) != 0
    written = {path.name for path in (settings().index_dir / "releases").iterdir()}
    expire_leases(task)
    assert run_in_process(learning_job.run_learning_job, task, die_after(ShardStore, "publish")) != 0
    published = open_store().manifest()
    assert written == {published.release, *(state.id for state in published.training.values())}
    expire_leases(task)
    learn(task)
    assert open_store().manifest() == published
    assert recall_cells()[1, 1, "pinned", "local"].queries == len(newest_fold().videos) == 2


@pytest.mark.slow
def test_report_ranks_the_videos_of_a_fold_as_if_they_were_not_learned(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = post_analytic(post_videos, "day")
    learn(task)
    snapshot, fold = load_served(), newest_fold()

    def report() -> QueryReport:
        return QueryReports(settings(), CatalogReadCache(CatalogReads())).report(snapshot, task, 9)

    assert (report().split, report().held_out, report().queries) == ("fold", False, 2)
    far = replace(fold, queries=np.zeros_like(fold.queries))
    monkeypatch.setattr(explanations, "read_fold", lambda folder: far)
    ranks = [outcome.rank for outcome in report().worst]
    assert len(ranks) == 2
    assert min(rank or 99 for rank in ranks) > 1
    monkeypatch.setattr(explanations, "read_fold", lambda folder: None)
    assert report().split == "train"
