"""The recall gate of a large domain: measured with captions that were not learned, and what passes it is searched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from index.files.segment_files import QUERIES
from index.scanning.ann_index import AnnIndex
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import FaissShard
from index.store_options import ANN_KINDS, AnnPolicy
from service.search.engine import SearchEngine
from service.storage import index_manifest
from service.tasks.probing_completion import SplitCandidate, assign_splits
from tests.service.search import caption_library
from tests.trainer.methods.method_driver import create_method, reserved_backbone, write_task
from trainer.methods import Method
from trainer.published_library import Library
from trainer.release_calibration import LibraryCaptions, calibrate_release
from trainer.task_data import TaskData
from trainer.task_pipeline import WrittenRelease, index_task
from trainer.training_loop import learn_task

VIDEOS = 1040  # a fifth of the half with captions is enough for the gate


def learn(store: ShardStore, task: TaskData, method: Method) -> WrittenRelease:
    library, none = Library(store), LibraryCaptions({}, {}, {})
    learn_task(method, task)

    def calibrate(encoder: Any, *state: Any) -> Any:
        return calibrate_release(method, task, encoder, library, *state, none, report_alive=lambda: None)

    return index_task(method, library, task, calibrate=calibrate)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A served domain, half of whose videos have no captions; two are deleted."""
    folder, backbone = tmp_path_factory.mktemp("half"), reserved_backbone()
    captions = [[f"clip {n} shows shape {n % 7}, spinning"] if n % 2 else [] for n in range(VIDEOS)]
    candidates = [SplitCandidate(n, f"{n:05}", bool(texts), None) for n, texts in enumerate(captions, 1)]
    splits, _ = assign_splits(candidates, 0.2, is_folded=True)
    clips = write_task(folder, "half", captions, first_id=1).clips
    task = TaskData("tsk_half", "half", tuple(replace(c, split=splits[c.vector_id]) for c in clips))
    with caption_library.settled(folder / "data", backbone) as configured:
        store = ShardStore(configured.index_dir, policy=AnnPolicy(exact_rows=VIDEOS - 1))
        method = create_method("analytic", backbone)
        written = learn(store, task, method)
        store.publish(release=written.release, shards=[written.shard])
        store.delete([1, 2])
        facts = [{"captions": list(clip.captions)} for clip in clips]
        rows = caption_library.Library(configured, backbone, "zero_shot")
        rows._catalogue("half", [""] * VIDEOS, datetime.now(UTC), facts)
        engine = SearchEngine(configured)
        assert engine.snapshots.refresh()
        yield SimpleNamespace(store=store, task=task, method=method, written=written, engine=engine)


def _require_measured_by_fold(half: Any, store: ShardStore, segment: Any) -> None:
    assert segment.structure.kind in ANN_KINDS
    assert segment.structure.recall >= 0.99
    queries = np.load(store.shard_folder(segment.id) / QUERIES)
    assert len(queries) == sum(clip.split == "fold" for clip in half.task.clips) == 104
    np.testing.assert_array_equal(queries, half.written.state.fold.queries.astype(np.float32))


def test_gate_takes_cross_fitted_captions(half: Any) -> None:
    """The release has learned all captions; the solution without the fold encodes those of the fold otherwise."""
    _require_measured_by_fold(half, half.store, half.written.shard)
    learned = half.method.query_encoder().encode(half.task.training_captions, [half.task.task_id])[:, 0]
    assert (half.written.state.fold.queries @ learned.T).max() < 0.9999


@pytest.mark.parametrize("k", [10, 24])  # 24 are a page of the dashboard
@pytest.mark.parametrize(("q", "structures"), [("unrelated words", 1), ("shape 3", 2)])
def test_search_scans_structure_of_half_captioned_domain_once(
    half: Any, q: str, structures: int, k: int
) -> None:
    """Once more for the videos whose captions have the word "shape", and in no other scan of all videos."""
    with (
        patch.object(FaissShard, "search_many", autospec=True, side_effect=FaissShard.search_many) as scan,
        patch.object(AnnIndex, "search", autospec=True, side_effect=AnnIndex.search) as search_structure,
    ):
        assert len(half.engine.search(q, k=k).results) == k
    scans_of_all = [call for call in scan.call_args_list if call.args[4] is None]
    assert (len(scans_of_all), search_structure.call_count) == (1, structures)


@pytest.mark.parametrize("is_damaged", [False, True], ids=["intact", "damaged"])
def test_grown_domain_is_measured_with_the_fold_of_its_release(
    half: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """Segments below the limit store no queries; the compaction that joins them reads those of the release."""
    monkeypatch.setattr(index_manifest, "EXACT_ROWS", VIDEOS // 2)
    store = index_manifest.library_store(half.engine.settings.model_copy(update={"data_dir": tmp_path}))
    with store.staging() as staged:
        shutil.copytree(half.store.release_folder(half.written.release.id), staged, dirs_exist_ok=True)
        if is_damaged:
            (staged / "fold.safetensors").write_bytes(b"cut off")
        release = store.adopt_release(staged)
    shard = half.store.open([half.written.shard])
    write = partial(store.write_shard, task="t", release=release.id, fingerprint="f")
    first, second = (write(ids=ids, vectors=shard.vectors(ids)) for ids in np.split(shard.ids, 2))
    store.publish(release=release, shards=[first], segments=[second])
    (segment,) = store.compact("t").segments("t")
    assert first.structure is second.structure is None
    if is_damaged:
        assert segment.structure is None
    else:
        _require_measured_by_fold(half, store, segment)


@pytest.mark.parametrize(
    ("name", "splits", "settings", "videos"),
    [
        ("analytic", ["test", "val"], {}, [0, 1]),
        ("finetune", ["test", "val"], {"epochs": 1}, [0, 1]),
        ("analytic", [], {"max_videos": 2}, [1, 3]),
        ("analytic", [], {}, []),
        ("zero_shot", [], {}, [0, 1, 2, 3]),
    ],
)
def test_gate_without_fold_takes_captions_that_were_not_learned(
    tmp_path: Path, name: str, splits: Any, settings: dict[str, Any], videos: list[int]
) -> None:
    task = write_task(tmp_path, "day", [[f"number {n}"] for n in range(4)], splits)
    method = create_method(name, reserved_backbone(), **settings)
    with patch.object(ShardStore, "write_shard", autospec=True, side_effect=ShardStore.write_shard) as write:
        learn(ShardStore(tmp_path, policy=AnnPolicy(exact_rows=3)), task, method)
        large = write.call_args.kwargs["queries"]
        index_task(method, Library(ShardStore(tmp_path, policy=AnnPolicy(exact_rows=4))), task)
        assert write.call_args.kwargs["queries"] is None, "four videos are not more than the limit"
    if not videos:
        assert large is None
        return
    texts = [text for video in videos for text in task.clips[video].captions]
    np.testing.assert_allclose(large, method.query_encoder().encode(texts, ["day"])[:, 0], atol=1e-5)
