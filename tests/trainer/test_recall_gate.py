"""The recall gate of a large domain: measured with captions that were not learned, and what passes it is searched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from index.files.segment_files import QUERIES
from index.scanning.ann_index import AnnIndex
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import FaissShard
from index.store_options import ANN_KINDS, AnnPolicy
from models.backbones.backbone import Backbone
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.search.engine import SearchEngine
from service.storage import index_manifest
from service.storage.index_manifest import library_store
from service.tasks.probing_completion import SplitCandidate, assign_splits
from tests.service.search.caption_library import settled
from tests.trainer.methods.method_driver import create_method, reserved_backbone, write_task
from trainer.methods import Method
from trainer.published_library import Library
from trainer.release_calibration import LibraryCaptions, calibrate_release
from trainer.task_data import TaskData
from trainer.task_pipeline import WrittenRelease, index_task
from trainer.training_loop import learn_task

VIDEOS = 1040  # a fifth of the half with captions is enough for the gate
SUBJECTS = ("circle", "square", "star", "ring", "arrow", "cross", "spiral")
MOTIONS = ("moves left", "vanishes", "spins", "bounces", "fades in")


class Gated(NamedTuple):
    """A domain that was learned with a lower limit of exact searches."""

    method: Method
    task: TaskData
    store: ShardStore
    written: WrittenRelease


def learn(folder: Path, task: TaskData, method: Method, exact_rows: int) -> Gated:
    store = ShardStore(folder, policy=AnnPolicy(exact_rows=exact_rows))
    library, no_captions = Library(store), LibraryCaptions({}, {}, {})
    learn_task(method, task)
    written = index_task(
        method,
        library,
        task,
        calibrate=lambda encoder, state, vectors: calibrate_release(
            method, task, encoder, library, state, vectors, no_captions, report_alive=lambda: None
        ),
    )
    return Gated(method, task, store, written)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return reserved_backbone()


@pytest.fixture(scope="module")
def half_captioned(tmp_path_factory: pytest.TempPathFactory, backbone: Backbone) -> Iterator[Any]:
    """A library with one domain, half of whose videos have no captions, and its search engine; two are deleted."""
    folder = tmp_path_factory.mktemp("half")
    captions = [
        [f"clip {n} shows a {SUBJECTS[n % 7]} that {MOTIONS[n % 5]}"] if n % 2 else [] for n in range(VIDEOS)
    ]
    candidates = [SplitCandidate(n, f"{n:05}", bool(texts), None) for n, texts in enumerate(captions, 1)]
    splits, _ = assign_splits(candidates, 0.2, is_folded=True)
    task = write_task(folder, "half", captions, first_id=1)
    task = replace(task, clips=tuple(replace(clip, split=splits[clip.vector_id]) for clip in task.clips))
    with settled(folder / "data", backbone) as configured:
        gated = learn(configured.index_dir, task, create_method("analytic", backbone), exact_rows=VIDEOS - 1)
        gated.store.publish(release=gated.written.release, shards=[gated.written.shard])
        with session_scope(write=True) as session:
            fields = {"position": 1, "learned_order": 1, "method": "analytic", "state": "ready"}
            session.add(Task(id="half", name="half", created_at=datetime.now(UTC), **fields))
            session.flush()
            session.add_all(
                Video(
                    vector_id=clip.vector_id,
                    id=clip.id,
                    task_id="half",
                    uri=f"{clip.id}.mp4",
                    captions=list(clip.captions),
                    status="accepted",
                )
                for clip in task.clips
            )
        gated.store.delete([1, 2])
        engine = SearchEngine(configured)
        assert engine.snapshots.refresh()
        yield gated, engine


def test_gate_takes_cross_fitted_captions(half_captioned: tuple[Gated, SearchEngine]) -> None:
    """The release has learned all captions; the solution without the fold encodes those of the fold otherwise."""
    method, task, store, written = half_captioned[0]
    structure, fold = written.shard.structure, written.state.fold
    assert structure is not None
    assert structure.kind in ANN_KINDS
    assert structure.recall >= 0.99
    queries = np.load(store.shard_folder(written.shard.id) / QUERIES)
    assert fold is not None
    assert len(queries) == structure.queries == sum(clip.split == "fold" for clip in task.clips) == 104
    np.testing.assert_array_equal(queries, fold.queries.astype(np.float32))
    texts = task.training_captions
    learned = method.query_encoder().encode(texts, [task.task_id])[:, 0]
    distances = np.linalg.norm(queries[:, None] - learned, axis=2)
    assert distances.min() > 0.01


@pytest.mark.parametrize("k", [10, 24])  # 24 are a page of the dashboard
@pytest.mark.parametrize("q", ["unrelated words", "a spiral", "a ring fades in"])
def test_search_of_half_captioned_domain_scans_its_structure_once(
    half_captioned: tuple[Gated, SearchEngine], monkeypatch: pytest.MonkeyPatch, q: str, k: int
) -> None:
    """Other scans only read videos whose captions have words of the query."""
    calls: list[str] = []
    search_many, search_structure = FaissShard.search_many, AnnIndex.search

    def scan(self: FaissShard, queries: Any, k: int, exclude: Any, include: np.ndarray | None) -> Any:
        calls.append("all videos" if include is None else "videos with words")
        if include is not None:
            assert all(half_captioned[0].task.clips[video - 1].captions for video in include.tolist())
        return search_many(self, queries, k, exclude, include)

    def use_structure(self: AnnIndex, query: np.ndarray, parameter: int) -> Any:
        calls.append("structure")
        return search_structure(self, query, parameter)

    monkeypatch.setattr(FaissShard, "search_many", scan)
    monkeypatch.setattr(AnnIndex, "search", use_structure)
    assert len(half_captioned[1].search(q, k=k).results) == k
    assert calls[:2] == ["all videos", "structure"]
    assert calls.count("all videos") == 1


@pytest.mark.parametrize("fold", ["intact", "damaged", "none"])
def test_grown_domain_is_measured_with_the_fold_of_its_release(
    half_captioned: tuple[Gated, SearchEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold: str
) -> None:
    """Segments below the limit store no queries; the compaction that joins them reads those of the release."""
    gated, engine = half_captioned
    monkeypatch.setattr(index_manifest, "EXACT_ROWS", VIDEOS // 2)
    store = library_store(engine.settings.model_copy(update={"data_dir": tmp_path}))
    with store.staging() as staged:
        shutil.copytree(gated.store.release_folder(gated.written.release.id), staged, dirs_exist_ok=True)
        if fold == "damaged":
            os.truncate(staged / "fold.safetensors", 1000)
        elif fold == "none":
            (staged / "fold.safetensors").unlink()
        release = store.adopt_release(staged)
    pinned = {"task": "half", "release": release.id, "fingerprint": gated.written.state.fingerprint}
    first, second = np.split(gated.store.segment_ids(gated.written.shard), 2)
    shard = gated.store.open([gated.written.shard])
    store.publish(
        release=release, shards=[store.write_shard(ids=first, vectors=shard.vectors(first), **pinned)]
    )
    manifest = store.append(store.write_shard(ids=second, vectors=shard.vectors(second), **pinned))
    assert [segment.structure for segment in manifest.segments("half")] == [None, None]
    (segment,) = store.compact("half").segments("half")
    if fold != "intact":
        assert segment.structure is None
        return
    assert segment.structure is not None
    assert segment.structure.kind in ANN_KINDS
    measured = gated.written.state.fold
    assert measured is not None
    queries = np.load(store.shard_folder(segment.id) / QUERIES)
    np.testing.assert_array_equal(queries, measured.queries.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "splits", "settings", "videos"),
    [
        ("analytic", ["test", "val"], {}, [0, 1]),
        ("analytic", [], {"max_videos": 2}, [1, 3]),
        ("analytic", [], {}, []),
        ("zero_shot", [], {}, [0, 1, 2, 3]),
    ],
    ids=["held out", "not observed", "all learned", "nothing learned"],
)
def test_gate_without_fold_takes_captions_that_were_not_learned(
    tmp_path: Path,
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    splits: Sequence[Any],
    settings: dict[str, Any],
    videos: list[int],
) -> None:
    task = write_task(tmp_path, "day", [[f"number {n}"] for n in range(4)], splits)
    written: list[Any] = []
    original = ShardStore.write_shard

    def write_shard(self: ShardStore, **fields: Any) -> Any:
        written.append(fields["queries"])
        return original(self, **fields)

    monkeypatch.setattr(ShardStore, "write_shard", write_shard)
    method = learn(tmp_path / "index", task, create_method(name, backbone, **settings), exact_rows=3).method
    if not videos:
        assert written == [None]
        return
    texts = [text for video in videos for text in task.clips[video].captions]
    np.testing.assert_array_equal(written[0], method.query_encoder().encode(texts, ["day"])[:, 0])
