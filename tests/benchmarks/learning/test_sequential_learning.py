"""Sequential learning in memory against the same loop written out, re-indexing, and joint training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning.sequential_learning import SequentialLearner
from benchmarks.rivals import start_method
from models.backbones.backbone import Backbone
from models.releases.release_state import ReleaseState
from tests.trainer.methods.method_driver import random_backbone, write_task
from trainer.task_data import Split, StoredVectors, TaskData, vector_ids
from trainer.training_loop import fit, learn_task
from trainer.video_embedding import MemoryShard, embed_clips

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
