"""Learning of long videos on a real catalog and index: their moments are stored, and nothing else changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from sqlalchemy import select

from index.arrays import is_moment, moment_ids, video_ids_of
from media import MediaError, VideoDecoder
from media.pyav_decoding import fit_picture
from media.video_limits import VideoLimits
from service.catalog.database import session_scope
from service.catalog.domain_videos import moment_spans
from service.catalog.tables import Moment, Task
from service.core.settings import settings
from service.library.deletion import compact, delete_videos
from service.library.library_listing import get_video
from service.library.library_status import library_status
from service.library.recall_matrix import read_recall_matrix
from service.tasks import commands
from service.tasks.commands import events_after
from service.tasks.lifecycle.state_machine import clear_lease
from tests.claimed_probing import probe
from tests.measured_library import figures_without_ids
from tests.trainer.worker.library_state import catalog_vector_ids, learn, open_store, run_job, shard_vectors
from trainer import video_embedding
from trainer.methods import start_method
from trainer.published_library import Library
from trainer.video_embedding import group_segments
from trainer.worker import catalog_reader, job_environment, learning_job

Post = Callable[..., str]
pytestmark = pytest.mark.usefixtures("library")

LONG = {0: 30, 3: 45}  # duration in seconds of the videos with moments, by number


def _frame_at(path: Path, seconds: float, size: int) -> np.ndarray:
    """Return the last frame that starts at or before a time, found by decoding the whole file."""
    with av.open(str(path)) as container:
        shown = [frame for frame in container.decode(video=0) if frame.time <= seconds]
    return fit_picture(Image.fromarray(shown[-1].to_ndarray(format="rgb24")), size)


def test_vector_of_a_moment_encodes_its_frames(post_videos: Post) -> None:
    task = post_videos("day", seconds=LONG)
    learn(task)
    stored, ids = shard_vectors(task), catalog_vector_ids(task)
    assert {int(i) for i in video_ids_of(np.array([i for i in stored if i >= 2**62]))} == {
        ids["day-0"],
        ids["day-3"],
    }
    backbone = job_environment.load_worker_backbone(settings().backbone, 2, 1)
    library = Library(open_store())
    release = library.release(str(library.manifest.release))
    method = start_method(release.method, backbone, release.config, release)
    for name, spans in (("day-0", [(0, 20), (10, 30)]), ("day-3", [(0, 18), (9, 27), (18, 36), (27, 45)])):
        with session_scope() as session:
            assert moment_spans(session, ids[name]) == spans
        assert [(moment.start, moment.end) for moment in get_video(name).moments] == spans
        path = settings().media_root / "day" / f"{name[-1]}.mp4"
        for moment, (start, end) in zip(moment_ids(ids[name], len(spans)).tolist(), spans, strict=True):
            times = [start + (end - start) / 4, start + 3 * (end - start) / 4]
            frames = np.stack([_frame_at(path, time, backbone.spec.size) for time in times])
            with torch.no_grad():
                expected = method.encode_videos(torch.from_numpy(frames[None]))[0].numpy()
            assert stored[moment] == pytest.approx(expected, abs=1e-3), (name, start)
    assert get_video("day-1").moments == []


def test_worker_without_lease_does_not_disturb_the_next_one(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker hangs while it decodes moments; another one starts over, and the first ends in the meantime."""
    task = post_videos("day", seconds=LONG)
    sampled: list[Path] = []
    sample = VideoDecoder.sample

    def sample_and_switch(self: VideoDecoder, path: Path, *, into: Path, **how: Any) -> None:
        sample(self, path, into=into, **how)
        sampled.append(into)
        if len(sampled) == 1:
            with session_scope(write=True) as session:
                clear_lease(session.get_one(Task, task))
            learning_job.run_learning_job(task)
        elif len(sampled) == 2:
            sampled[0].unlink()  # as the first worker does at its end

    monkeypatch.setattr(VideoDecoder, "sample", sample_and_switch)
    view = run_job(task)
    assert (view.state, view.error, len(sampled)) == ("ready", None, 3)
    assert len(shard_vectors(task)) == 6 + 2 + 4


@pytest.mark.slow
def test_moments_change_no_bit_of_anything_else(
    post_videos: Post, settings_factory: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of whole videos, the release and all figures are equal with and without moments."""
    fields = {"frames": 2, "torch_threads": 1, "lease_seconds": 600}

    def learn_all(folder: str) -> tuple[Any, ...]:
        settings_factory(tmp_path / folder, **fields)
        # Loading the backbone seeds torch, on which the initial weights depend.
        job_environment.load_worker_backbone.cache_clear()
        tasks = [post_videos("day", seconds=LONG, videos=4), post_videos("night", seconds={1: 21}, videos=4)]
        vectors = [shard_vectors(learn(task).id) for task in tasks]
        figures = figures_without_ids(read_recall_matrix())
        store = open_store()
        entries = store.manifest()
        files = [entries.shards[task].files["vectors.faiss"] for task in tasks]
        training = Library(store).stored_vectors(catalog_reader.training_video_ids(Library(store)))
        sampled = training.sample(len(training), np.random.default_rng(0))
        assert sampled is not None
        return vectors, figures, files, sampled.numpy(), [len(entries.segments(task)) for task in tasks]

    with_vectors, figures, files, sampled, parts = learn_all("with")
    monkeypatch.setattr(catalog_reader, "MAX_MOMENTS", 0)
    without, same_figures, same_files, same_sampled, no_parts = learn_all("without")
    assert (parts, no_parts) == ([2, 2], [1, 1])
    assert [sum(i >= 2**62 for i in vectors) for vectors in with_vectors] == [6, 2]
    assert files == same_files
    assert figures == same_figures
    assert np.array_equal(sampled, same_sampled)
    for vectors, whole_only in zip(with_vectors, without, strict=True):
        whole = {i: vector for i, vector in vectors.items() if i < 2**62}
        assert whole.keys() == whole_only.keys()
        assert all(np.array_equal(whole[i], whole_only[i]) for i in whole_only)


def test_unreadable_video_stays_searchable_as_a_whole(post_videos: Post) -> None:
    task = post_videos("day", seconds={**LONG, 4: 25, 5: 33})
    folder = settings().media_root / "day"
    (folder / "0.mp4").unlink()
    shutil.copyfile(folder / "4.mp4", folder / "3.mp4")
    learn(task)
    ids = catalog_vector_ids(task)
    moments_of = video_ids_of(np.array([i for i in shard_vectors(task) if i >= 2**62]))
    assert set(moments_of.tolist()) == {ids["day-4"], ids["day-5"]}
    assert set(ids.values()) <= set(shard_vectors(task))
    with session_scope() as session:
        assert set(session.scalars(select(Moment.video_vector_id))) == {ids["day-4"], ids["day-5"]}
    messages = [event.data["message"] for event in events_after(task) if event.kind == "log"]
    assert any("'day-0' is searchable as a whole, but not by its moments" in message for message in messages)
    assert any("'day-3'" in message and "differs from the accepted one" in message for message in messages)
    assert not any(str(settings().data_dir) in message for message in messages)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["index_task", "plan_moments", "evaluate_task", "publish_task"])
def test_long_video_deleted_during_learning_leaves_no_moment(
    post_videos: Post, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The video is deleted just before a stage, or just after its moments were planned.

    If training misses the frames of the video, the task starts again without it.
    """
    task = post_videos("day", seconds=LONG)
    module = catalog_reader if stage == "plan_moments" else learning_job
    ids, original = catalog_vector_ids(task), getattr(module, stage)

    def meanwhile(*given: Any, **how: Any) -> Any:
        moments = original(*given, **how) if stage == "plan_moments" else None
        delete_videos(["day-3"])
        (settings().media_root / "day" / "3.mp4").unlink(missing_ok=True)
        return moments if stage == "plan_moments" else original(*given, **how)

    monkeypatch.setattr(module, stage, meanwhile)
    learning_job.run_learning_job(task)
    learn(task)
    expected = [i for name, i in ids.items() if name != "day-3"] + moment_ids(ids["day-0"], 2).tolist()
    assert sorted(shard_vectors(task)) == expected
    with session_scope() as session:
        assert set(session.scalars(select(Moment.video_vector_id))) == {ids["day-0"]}
    assert "day-3" not in str([event.data for event in events_after(task)])
    for _ in range(2):
        assert (library_status().searchable, library_status().vectors) == (5, len(expected))
        compact(task)


@pytest.mark.slow
def test_full_disk_fails_the_task_and_skips_no_video(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that no video caused must not remove the moments of all videos."""
    task = post_videos("day", seconds=LONG)

    def sample(decoder: VideoDecoder, path: Path, **fields: Any) -> None:
        raise OSError("the frames of day-0 cannot be stored (No space left on device)")

    with monkeypatch.context() as full:
        full.setattr(VideoDecoder, "sample", sample)
        view = run_job(task)
    assert view.state == "failed"
    assert "The disk is full" in str(view.error)
    commands.retry_task(task)
    probe(task)
    assert len(shard_vectors(learn(task).id)) == 6 + 6


def test_video_with_a_damaged_second_half_has_no_moments(
    post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_embedding, "MAX_DECODED_FRAMES", 4)  # two moments at a time
    task = post_videos("day", seconds=LONG)
    original = VideoDecoder.sample

    def sample(decoder: VideoDecoder, path: Path, **fields: Any) -> None:
        if fields["times"][0] > 18 and fields["name"] == "day-3":
            raise MediaError("day-3 is damaged")
        original(decoder, path, **fields)

    monkeypatch.setattr(VideoDecoder, "sample", sample)
    learn(task)
    ids = np.array(list(shard_vectors(task)))
    assert set(video_ids_of(ids[is_moment(ids)]).tolist()) == {catalog_vector_ids(task)["day-0"]}


def test_moment_vectors_do_not_depend_on_frames_decoded_at_a_time(
    post_videos: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = post_videos("day", seconds={0: 90})
    path = settings().media_root / "day" / "0.mp4"
    spans = [(10.0 * n, 10.0 * n + 20) for n in range(8)]
    video = video_embedding.LongVideo("day-0", 7, get_video("day-0").content_hash or "", tuple(spans))
    decoded: list[int] = []
    original = VideoDecoder.sample

    def sample(decoder: VideoDecoder, path: Path, **fields: Any) -> None:
        decoded.append(len(fields["times"]))
        original(decoder, path, **fields)

    monkeypatch.setattr(VideoDecoder, "sample", sample)

    def mean_colors(at_a_time: int) -> np.ndarray:
        monkeypatch.setattr(video_embedding, "MAX_DECODED_FRAMES", at_a_time)
        ((ids, vectors),) = video_embedding.embed_moments(
            lambda frames: frames.float().mean(dim=(2, 3, 4)),
            [video],
            4,
            8,
            open_video=lambda _: nullcontext(path),
            scratch=tmp_path / "new" / "moments.npy",
            limits=VideoLimits(),
            on_skip=lambda *skipped: pytest.fail(str(skipped)),
        )
        assert ids.tolist() == moment_ids(7, 8).tolist()
        assert list((tmp_path / "new").iterdir()) == []
        return vectors

    few, all_at_once = mean_colors(1), mean_colors(1000)
    assert decoded == [4] * 8 + [2 * 8 + 2], "frames of overlapping moments are decoded once"
    assert np.array_equal(few, all_at_once)
    expected = [[_frame_at(path, start + (n + 0.5) * 5, 8).mean() for n in range(4)] for start, _ in spans]
    assert few == pytest.approx(np.array(expected), abs=1)
    assert commands.get_task(task).state == "probing"


def test_segments_contain_whole_videos_up_to_the_row_limit() -> None:
    sizes = [3, 1, 4, 1, 5, 9, 2, 6]
    ids = [moment_ids(video, count) for video, count in enumerate(sizes)]
    segments = list(
        group_segments([(i, np.full((len(i), 2), i[0] % 7, np.float32)) for i in ids], segment_rows=8)
    )
    assert [len(part) for part, _ in segments] == [8, 15, 8]
    assert np.array_equal(np.concatenate([part for part, _ in segments]), np.concatenate(ids))
    assert all(len(part) == len(vectors) for part, vectors in segments)
    assert list(group_segments([])) == []
