"""Protocols, sources of videos, sampled frames, and the loop that learns tasks in memory."""

from __future__ import annotations

import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from benchmarks.data.clip_folders import read_clip_domains, select_held_out
from benchmarks.data.frame_sources import FileFrames
from benchmarks.data.source_tasks import SourceTask
from benchmarks.learning.protocol import CtvrSource, load_protocol, parse_variant, protocol_names
from benchmarks.learning.sequential_learning import SequentialLearner
from benchmarks.rivals import METHODS, configure, start_method
from media import VideoDecoder, load_frames
from models.backbones.backbone import Backbone
from models.releases.release_state import ReleaseState
from tests.trainer.methods.method_driver import random_backbone, write_task
from trainer.task_data import Split, StoredVectors, TaskData, vector_ids
from trainer.training_loop import fit, learn_task
from trainer.video_embedding import MemoryShard, embed_clips

# --- protocol files ---


@pytest.mark.parametrize("name", protocol_names())
def test_protocol_contains_valid_settings_for_its_methods(name: str) -> None:
    protocol = load_protocol(name)
    assert protocol.name == name
    for method in METHODS:
        settings = protocol.complete(parse_variant(method)).settings
        config = configure(method, protocol.backbone, settings).model_dump()
        assert {key: config[key] for key in settings} == settings
    assert set(protocol.recipes) <= set(METHODS)


@pytest.mark.parametrize(
    ("name", "frames", "expected"),
    [
        ("msrvtt", 12, {"batch_size": 8, "learning_rate": 4e-6, "ffa_layers": 10, "experts": 10}),
        ("actnet", 24, {"batch_size": 16, "learning_rate": 6e-6, "ffa_layers": 12, "experts": 5}),
    ],
)
def test_ctvr_recipe_equals_that_of_the_paper(name: str, frames: int, expected: dict[str, Any]) -> None:
    """Section 4.4 of ctvr-ffa-tame."""
    expected |= {"epochs": 20, "schedule": "cosine", "cross_task": 0.6}
    for tasks in (10, 20):
        protocol = load_protocol(f"ctvr-{name}-{tasks}")
        assert (protocol.frames, protocol.prior, protocol.seeds) == (frames, 0, 3)
        assert protocol.backbone == "open_clip:ViT-B-32/openai"
        settings = protocol.complete(parse_variant("ffa_tame")).settings
        config = configure("ffa_tame", protocol.backbone, settings).model_dump()
        assert {key: config[key] for key in expected} == expected


# --- MSR-VTT and ActivityNet ---


def _listed(name: str) -> CtvrSource:
    return load_protocol(f"ctvr-{name}").source


@pytest.fixture(scope="module")
def msrvtt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty files with the expected names in two folder levels, and training captions."""
    folder = tmp_path_factory.mktemp("msrvtt")
    rows = [row for group in _listed("msrvtt-10").category_groups() for c in group for row in c.rows]
    (folder / "TestVideo").mkdir()
    for split, (video, *_) in rows:
        (folder / ("TestVideo" if split == "test" else ".") / f"{video}.mp4").touch()
    trained = [video for split, (video, *_) in rows if split == "train"]
    sentences = [{"video_id": v, "caption": f"caption {i} of {v}"} for v in trained for i in range(20)]
    (folder / "MSRVTT_data.json").write_text(json.dumps({"sentences": sentences}))
    return folder


def _test_captions(parts: list[SourceTask]) -> list[str]:
    videos = [video for part in parts for video in part.videos if video.split == "test"]
    assert all(len(video.captions) == 1 for video in videos)
    return [video.captions[0] for video in videos]


def test_msr_vtt_has_the_official_test_split_and_all_training_captions(msrvtt: Path) -> None:
    parts = list(_listed("msrvtt-10").tasks(msrvtt, None))
    videos = [video for part in parts for video in part.videos]
    numbers = {split: [int(v.id[5:]) for v in videos if v.split == split] for split in ("train", "test")}
    assert sorted(numbers["test"]) == list(range(7010, 10000))
    assert (min(numbers["train"]), max(numbers["train"])) == (3, 7005)
    assert all(len(v.captions) == 20 for v in videos if v.split == "train")
    captions = _test_captions(parts)
    assert len(captions) - len(set(captions)) == 81
    assert captions.count("a game is being played") == 11
    assert statistics.fmean(len(caption.split()) for caption in captions) == pytest.approx(9.5, abs=0.1)


# --- folders with manifests ---


def _manifest(folder: Path, lines: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for line in lines:
        (folder / line["uri"]).touch()
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


# --- frames ---


def _video(path: Path, seconds: int = 8, rate: int = 8) -> Path:
    """Write a video whose frame at second t has brightness 20 t."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(seconds * rate):
            level = np.full((64, 64, 3), 20 * number / rate, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(level, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def test_frames_of_a_file_equal_those_of_the_service(tmp_path: Path) -> None:
    path = _video(tmp_path / "ramp.mp4")
    with VideoDecoder() as decoder:
        info = decoder.decode(path, frames=4, size=56, cache=tmp_path)
    served = load_frames(tmp_path / "4x56" / f"{info.content_hash}.npy")
    assert np.array_equal(FileFrames(path).frames(4, 56), served)


@pytest.mark.parametrize(
    ("span", "times"),
    [
        ((2.0, 6.0), (3.0, 5.0)),
        ((0.0, 8.0), (2.0, 6.0)),
        ((6.0, 99.0), (6.5, 7.5)),
        ((50.0, 60.0), (7.9, 7.9)),
    ],
)
@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_frames_of_a_span_are_sampled_within_it(
    tmp_path: Path, kind: str, span: tuple[float, float], times: tuple[float, float]
) -> None:
    frames = FileFrames(_video(tmp_path / f"ramp.{kind}"), span).frames(2, 56)
    assert frames.shape == (2, 56, 56, 3)
    assert frames.mean(axis=(1, 2, 3)) == pytest.approx([20 * time for time in times], abs=5)


def test_fifth_of_the_clips_is_held_out_by_hash() -> None:
    uris = [f"{number}.mp4" for number in range(23)]
    held_out = select_held_out(uris)
    assert len(held_out) == 4
    assert held_out == set(sorted(uris, key=lambda uri: hashlib.sha1(uri.encode()).hexdigest())[:4])
    assert len(select_held_out(uris[:5])) == 2


def test_given_splits_stay(tmp_path: Path) -> None:
    rows = [
        {"uri": f"{n}.mp4", "captions": ["a b"], "split": "test" if n == 3 else "train"} for n in range(9)
    ]
    _manifest(tmp_path / "one", rows)
    _manifest(tmp_path / "two", [{key: row[key] for key in ("uri", "captions")} for row in rows])
    one, two = read_clip_domains(tmp_path)
    assert [video.id for video in one.videos if video.split == "test"] == ["3.mp4"]
    assert {v.id for v in two.videos if v.split == "test"} == select_held_out([str(r["uri"]) for r in rows])
    assert {video.split for video in two.videos} == {"train", "test"}


SETTINGS = {"epochs": 1, "batch_size": 2, "experts": 2, "rank": 2}
CAPTIONS = ["a ring", "a star", "a cross"]


@pytest.fixture(scope="module")
def small_backbone() -> Backbone:
    return random_backbone()


@pytest.fixture
def tasks(tmp_path: Path) -> list[TaskData]:
    """Three tasks of two training videos and a test video; the second task has no captions."""
    splits: list[Split] = ["train", "train", "test"]
    return [
        write_task(tmp_path, "day", [[text] for text in CAPTIONS], splits),
        write_task(tmp_path, "fog", [[], [], []], splits),
        write_task(tmp_path, "night", [[f"{text} at night"] for text in CAPTIONS], splits),
    ]


def test_tasks_are_learned_as_in_a_loop_written_out(small_backbone: Backbone, tasks: list[TaskData]) -> None:
    release: ReleaseState | None = None
    memory: list[tuple[MemoryShard, np.ndarray]] = []
    expected_losses, expected_vectors, states = [], [], []
    for task in tasks:
        method = start_method("ffa_tame", small_backbone, SETTINGS, release)
        expected_losses.append(learn_task(method, task, StoredVectors(memory)))
        release = method.release()
        states.append(release)
        expected_vectors.append(embed_clips(method.encode_videos, task.clips))
        memory.append((MemoryShard(vector_ids(task.clips), expected_vectors[-1]), vector_ids(task.train)))

    learner = SequentialLearner("ffa_tame", small_backbone, SETTINGS)
    for task, losses, vectors, state in zip(tasks, expected_losses, expected_vectors, states, strict=True):
        assert learner.train(task) == losses
        shard = learner.index(task)
        assert shard.ids.tolist() == [clip.vector_id for clip in task.clips]
        assert np.array_equal(shard.vectors(shard.ids), vectors)
        assert learner.release is not None
        assert learner.release.fingerprint == state.fingerprint
    assert list(learner.pinned) == list(learner.shards) == ["day", "fog", "night"]
    names = [task.task_id for task in tasks]
    expected = method.query_encoder(dict(zip(names, states, strict=True)))
    for mode in expected.modes:
        queries = learner.query_encoder().encode(CAPTIONS, names, mode)
        assert np.array_equal(queries, expected.encode(CAPTIONS, names, mode))


def test_joint_training_learns_the_union_of_all_tasks(
    small_backbone: Backbone, tasks: list[TaskData]
) -> None:
    settings = {"epochs": 1, "batch_size": 2}
    method = start_method("joint", small_backbone, settings, None)
    union = TaskData("all", "all tasks", tuple(clip for task in tasks for clip in task.clips))
    method.begin_task("all", "all tasks")
    losses = fit(method, union)
    learner = SequentialLearner("joint", small_backbone, settings)
    assert learner.train_jointly(tasks) == losses
    assert learner.method is not None
    assert learner.method.fingerprint() == method.fingerprint()
    assert learner.release is not None
    assert [task.task_id for task in learner.release.tasks] == ["day", "fog", "night"]
    assert learner.release.profiles.to_dense().shape[0] == 3
