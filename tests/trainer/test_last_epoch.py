"""The option of a last epoch on all captioned videos: what earlier epochs see, and what is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.learning.sequential_learning import SequentialLearner
from models.backbones.backbone import Backbone
from tests.trainer.methods.method_driver import (
    InterruptedTraining,
    create_method,
    interrupt_at,
    random_backbone,
    write_task,
)
from trainer.methods import METHODS
from trainer.methods.base import MethodError
from trainer.release_calibration import add_fold, cross_fit
from trainer.task_data import TaskData, load_frames
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task

GRADIENT_METHODS = sorted(
    name for name, method in METHODS.items() if method.is_trainable and not method.is_closed_form
)
CAPTIONS = [
    ["a red circle"],
    ["a square vanishes", "a box fades"],
    ["two stars spin"],
    ["a ring bounces"],
    ["a dog"],
]
SETTINGS = {"epochs": 3, "batch_size": 2, "last_epoch": "all"}


@pytest.fixture
def task(tmp_path: Path) -> TaskData:
    return write_task(tmp_path, "day", CAPTIONS, ["train", "fold", "train", "train", "fold"])


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return random_backbone()


def _weights(method: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


@pytest.mark.parametrize("name", GRADIENT_METHODS)
def test_only_the_last_epoch_trains_on_the_fold(
    name: str, backbone: Backbone, task: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = create_method(name, backbone, **SETTINGS)
    shown: list[set[str]] = []
    begin = type(method).begin_epoch

    def record(self: Any, epoch: int, pairs: Any) -> None:
        shown.append({pair.clip.split for pair in pairs})
        begin(self, epoch, pairs)

    monkeypatch.setattr(type(method), "begin_epoch", record)
    steps: list[tuple[int, int]] = []
    learn_task(method, task, report=lambda progress: steps.append((progress.step, progress.steps)))
    assert shown == [{"train"}, {"train"}, {"train", "fold"}]
    assert steps == [(step, 7) for step in range(1, 8)]  # two of 2 batches, and one of 3
    part = method.before_last_epoch
    assert part is not None
    assert [each.task_id for each in part.learned_tasks] == ["day"]
    assert not torch.equal(
        part.encode_videos(load_frames(task.clips)), method.encode_videos(load_frames(task.clips))
    )
    release, measured = method.release(), part.release()
    assert not np.array_equal(release.profiles.to_dense([0]), measured.profiles.to_dense([0]))


@pytest.mark.parametrize("name", GRADIENT_METHODS)
def test_fold_is_searched_and_measured_by_the_state_before_the_last_epoch(
    name: str, backbone: Backbone, task: TaskData
) -> None:
    learner = SequentialLearner(name, backbone, SETTINGS)
    learner.learn([task])
    method, encoder = learner.method, learner.query_encoder()
    assert method is not None
    assert method.before_last_epoch is not None
    assert learner.release is not None
    searched = cross_fit(method, task, encoder, learner.pinned.__getitem__)
    assert [caption.video for caption in searched] == [1, 1, 4]
    fold = add_fold(learner.release, method, task, encoder, learner.pinned.__getitem__).fold
    assert fold is not None
    assert fold.videos.tolist() == [1, 4]
    vectors = method.before_last_epoch.encode_videos(load_frames(task.clips)).numpy()
    np.testing.assert_allclose(fold.video_vectors(fold.ids), vectors[fold.ids], atol=2e-3)
    captions = {
        caption.video: caption for caption in searched if caption.text in ("a square vanishes", "a dog")
    }
    for video, query in zip(fold.videos.tolist(), fold.query_vectors(fold.videos), strict=True):
        assert captions[video].score == pytest.approx(float(query @ vectors[video]), abs=5e-3)


@pytest.mark.slow
def test_interrupted_training_ends_with_the_same_states(
    backbone: Backbone, task: TaskData, tmp_path: Path
) -> None:
    def train(folder: Path, report: Any) -> Any:
        method = create_method("bmu_moco", backbone, **SETTINGS)
        learn_task(method, task, report=report, checkpoints=CheckpointStore(folder, "run", 1))
        return method

    whole = train(tmp_path / "whole", lambda progress: None)
    for step in (2, 4, 6):
        with pytest.raises(InterruptedTraining):
            train(tmp_path / f"until {step}", interrupt_at(step))
        resumed = train(tmp_path / f"until {step}", lambda progress: None)
        for one, other in ((whole, resumed), (whole.before_last_epoch, resumed.before_last_epoch)):
            for name, tensor in _weights(one).items():
                assert torch.equal(tensor, _weights(other)[name]), (step, name)


def test_option_needs_an_earlier_epoch(backbone: Backbone, tmp_path: Path) -> None:
    method = create_method("finetune", backbone, epochs=2, batch_size=2)
    learn_task(method, write_task(tmp_path, "day", CAPTIONS))
    assert method.before_last_epoch is None, "without the option"
    with pytest.raises(MethodError, match="at least 2 epochs"):
        create_method("finetune", backbone, epochs=1, last_epoch="all")
    assert create_method("finetune", backbone, epochs=2, last_epoch="all").config.last_epoch == "all"


def test_fold_that_no_method_learned_is_measured_by_the_release(backbone: Backbone, task: TaskData) -> None:
    """As after a retry with another method."""
    learner = SequentialLearner("zero_shot", backbone, {})
    learner.learn([task])
    assert learner.method is not None
    assert learner.release is not None
    encoder = learner.query_encoder()
    assert (
        add_fold(learner.release, learner.method, task, encoder, learner.pinned.__getitem__)
        is learner.release
    )
