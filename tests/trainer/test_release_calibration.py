"""Captions that calibrate a release, as if the method had not learned them, and those of appended videos."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learning.sequential_learning import SequentialLearner
from models.backbones.backbone import Backbone
from models.encoders.query_encoder import TokenizedText
from models.routing.routing_profiles import VOCABULARY, distinct_pieces, split_pieces
from tests.trainer.methods.method_driver import create_method, random_backbone, reserved_backbone, write_task
from trainer import release_calibration
from trainer.methods.analytic import Analytic
from trainer.release_calibration import MAX_TASK_CAPTIONS, calibrate_appended, cross_fit
from trainer.task_data import TaskData, draw_sample
from trainer.task_pipeline import HeldOutVideos
from trainer.training_loop import learn_task
from trainer.video_embedding import MemoryShard, embed_clips

SETTINGS = {"semantic_penalty": 3.0, "lexical_penalty": 2.0}
DAY = [
    ["a red circle moves left"],
    ["a square vanishes", "a box fades"],
    ["two stars spin"],
    ["a ring bounces"],
]
NIGHT = [
    ["a dog barks"],
    ["an owl flies"],
    ["a cat sleeps", "a kitten rests"],
    ["a bat hangs"],
    ["a fox runs"],
]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return reserved_backbone()


@pytest.fixture
def tasks(tmp_path: Path) -> list[TaskData]:
    """A task of four videos, and one of five, the last of which is a test video."""
    return [
        write_task(tmp_path, "day", DAY),
        write_task(tmp_path, "night", NIGHT, ["train", "train", "train", "train", "test"]),
    ]


def _learner(backbone: Backbone, tasks: list[TaskData]) -> SequentialLearner:
    learner = SequentialLearner("analytic", backbone, SETTINGS)
    learner.learn(tasks)
    return learner


def test_results_equal_those_of_learning_without_the_video(backbone: Backbone, tasks: list[TaskData]) -> None:
    first, learner = _learner(backbone, tasks[:1]), _learner(backbone, tasks)
    method: Any = learner.method
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    captions = cross_fit(method, tasks[1], learner.query_encoder(), learner.pinned.__getitem__)
    assert all(np.array_equal(before[name], tensor) for name, tensor in method.state_dict().items())
    train = tasks[1].train
    assert sorted((c.video, c.text) for c in captions) == sorted(
        (c.vector_id, t) for c in train for t in c.captions
    )
    for caption in captions:  # every fold has one video, since there are fewer than five
        clips = (
            replace(clip, split=None) if clip.vector_id == caption.video else clip for clip in tasks[1].clips
        )
        without = TaskData("night", "night", tuple(clips))
        other = create_method("analytic", backbone, first.release, **SETTINGS)
        learn_task(other, without)
        gallery = [clip for clip in without.clips if clip.split != "test"]
        vectors = embed_clips(other.encode_videos, gallery)
        encoder = other.query_encoder()
        cosines = encoder.encode([caption.text], ["night"], "pinned")[0, 0] @ vectors.T
        assert caption.score == pytest.approx(float(cosines[caption.video]), abs=1e-4)
        order = np.argsort(-cosines)
        np.testing.assert_allclose(caption.cosines, cosines[order], atol=1e-4)
        assert set(caption.ids) == {clip.vector_id for clip in gallery}
        profile = other.profiles.to_dense([1])[0]
        tokens = encoder.tokenize([caption.text])[0].pieces
        assert caption.words == pytest.approx(float(profile[tokens].sum()), abs=1e-4)
        assert caption.coverage == pytest.approx(float((profile[tokens] > 0).mean()))
        evidence = encoder.routing_evidence(encoder.tokenize([caption.text]), ["night"])
        assert evidence is not None
        assert caption.captions == pytest.approx(float(evidence[0, 0]), abs=1e-3)


def test_deleted_videos_are_not_read(backbone: Backbone, tasks: list[TaskData]) -> None:
    learner = _learner(backbone, tasks)
    gone = tasks[1].clips[2]
    gone.frames_path.unlink()
    method: Any = learner.method
    captions = cross_fit(
        method, tasks[1], learner.query_encoder(), learner.pinned.__getitem__, deleted={gone.vector_id}
    )
    assert {caption.video for caption in captions} == {0, 1, 3}
    assert {video for caption in captions for video in caption.ids} == {0, 1, 3}


def test_one_video_or_gradient_steps_have_no_results(backbone: Backbone, tmp_path: Path) -> None:
    alone = write_task(tmp_path, "alone", [["a single video"]])
    learner = _learner(backbone, [alone])
    assert learner.method is not None
    assert cross_fit(learner.method, alone, learner.query_encoder(), learner.pinned.__getitem__) == ()
    task = write_task(tmp_path, "day", DAY)
    trained = SequentialLearner("zero_shot", random_backbone(), {})
    trained.learn([task])
    assert trained.method is not None
    assert cross_fit(trained.method, task, trained.query_encoder(), trained.pinned.__getitem__) == ()


def test_number_of_captions_is_limited(backbone: Backbone, tmp_path: Path) -> None:
    many = write_task(tmp_path, "many", [[f"number {n} of {m}" for m in range(9)] for n in range(10)])
    learner = _learner(backbone, [many])
    assert learner.method is not None
    captions = cross_fit(learner.method, many, learner.query_encoder(), learner.pinned.__getitem__)
    assert len(captions) == MAX_TASK_CAPTIONS
    assert draw_sample(captions, 10) == draw_sample(captions, 10)
    assert set(draw_sample(captions, 10)) < set(captions)


def test_large_task_is_observed_and_searched_in_part(
    backbone: Backbone, tasks: list[TaskData], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    original = Analytic.embed_videos

    def count(method: Analytic, clips: Any, **options: Any) -> Any:
        searched.append(len(clips))
        return original(method, clips, **options)

    monkeypatch.setattr(Analytic, "embed_videos", count)
    monkeypatch.setattr(release_calibration, "MAX_GALLERY", 3)
    learner = SequentialLearner("analytic", backbone, {**SETTINGS, "max_videos": 2})
    learner.learn(tasks)
    searched.clear()
    captions = cross_fit(learner.method, tasks[1], learner.query_encoder(), learner.pinned.__getitem__)
    observed = tasks[1].observed(2)
    assert {caption.video for caption in captions} == {clip.vector_id for clip in observed}
    assert searched == [3, 3]  # the two observed videos and one other, for each of two folds


def test_queries_of_an_evaluation_are_a_sample_and_its_videos_are_not() -> None:
    videos = [(number, [f"caption {number}"] if number % 2 else []) for number in range(100)]
    held_out = HeldOutVideos.from_captions(videos, 10)
    assert len(held_out.ids) == 100
    assert len(held_out.queries) == 10
    assert held_out.queries == HeldOutVideos.from_captions(videos, 10).queries
    assert set(held_out.queries) < set(HeldOutVideos.from_captions(videos).queries)


DIM = 50


def pieces(numbers: Iterable[int]) -> np.ndarray:
    return np.array([split_pieces([str(number)])[0][0] for number in numbers])


class DigitEncoder:
    """A text is a row of numbers, a word piece each; its vector is the one-hot vector of the first."""

    modes = ("pinned",)

    profile_factor = 1.0

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        return [TokenizedText(np.empty(0, np.int64), text) for text in distinct_pieces(texts)]

    def routing_evidence(self, texts: Sequence[TokenizedText], tasks: Sequence[str]) -> None:
        return None

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> np.ndarray:
        return np.eye(DIM, dtype=np.float32)[[int(text.split()[0]) for text in texts]][:, None]


def calibrate(learned: Sequence[str], appended: Sequence[tuple[int, str]], videos: int = 8) -> Any:
    ids = np.arange(videos, dtype=np.int64)
    shard = MemoryShard(ids, np.eye(DIM, dtype=np.float32)[:videos])
    encoder: Any = DigitEncoder()
    return calibrate_appended(encoder, "day", shard, ids, learned, appended)


def test_profile_contains_all_captions() -> None:
    profile, _ = calibrate(["1 2", "1 3"], [(4, "1 4 4")])
    counts = np.zeros(VOCABULARY)
    counts[pieces([1, 2, 3, 4])] = 3, 1, 1, 1
    expected = np.log1p(VOCABULARY * counts / 6)
    assert profile == pytest.approx(expected, rel=1e-3)  # in the precision of a release


def test_evidence_of_a_caption_is_that_without_it() -> None:
    """As if the task had been given the other captions only."""
    appended = [(1, "1 2 3"), (2, "2 5"), (3, "6 7")]
    for number, (video, text) in enumerate(appended):
        others = appended[:number] + appended[number + 1 :]
        profile, _ = calibrate(["1 9"], others)
        words = pieces(map(int, text.split()))
        caption = next(each for each in calibrate(["1 9"], appended)[1] if each.video == video)
        assert caption.words == pytest.approx(profile[words].sum(), rel=1e-5)
        assert caption.coverage == pytest.approx((profile[words] > 0).mean())


def test_results_are_those_of_the_shard() -> None:
    _, (caption,) = calibrate([], [(5, "3 1")])
    assert (caption.score, caption.ids[0], caption.cosines[0]) == (0.0, 3, 1.0)
    assert list(caption.cosines) == sorted(caption.cosines, reverse=True)


def test_sample_is_bounded_and_leaves_out_videos_that_are_not_searched() -> None:
    many = [(video % 8, f"{video % 40}") for video in range(200)]
    (_, first), (_, second) = calibrate([], many), calibrate([], many)
    assert first == second
    assert len(first) == MAX_TASK_CAPTIONS
    assert calibrate([], [(30, "1")])[1] == []
