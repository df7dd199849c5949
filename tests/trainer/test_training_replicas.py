"""Training in two processes: loss, weights and checkpoints of one process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.rivals import start_method
from models.backbones.backbone import Backbone
from models.backbones.tower_computation import micro_batches, variable_set
from models.encoders.tower_forward import batch_encoder
from trainer.errors import ReplicaKilled
from trainer.methods import METHODS, Method
from trainer.process_group import ALONE, ProcessGroup
from trainer.task_data import StoredVectors, TaskData, load_frames, vector_ids
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import TrainingProgress, learn_task
from trainer.training_replicas import training_group
from trainer.video_embedding import MemoryShard

CAPTIONS = [[f"video {number}", f"a clip of number {number}"] for number in range(5)]
SETTINGS = {"epochs": 2, "batch_size": 3, "precision": "float32"}  # batches that two processes cannot halve
NOISE = {"ffa_tame": {"dropout": 0.5, "first_task": "routed"}}  # of the methods that draw any
STEPPED = [name for name, method in METHODS.items() if method.is_trainable and not method.is_closed_form]


@pytest.fixture
def task(random_task: Callable[..., TaskData]) -> TaskData:
    return random_task("task", CAPTIONS)


@pytest.fixture
def memory(random_task: Callable[..., TaskData], backbone: Backbone) -> StoredVectors:
    """Stored vectors of an earlier task, which process 0 alone can read."""
    earlier = random_task("earlier", CAPTIONS, first_id=100)
    generator = torch.Generator().manual_seed(1)
    vectors = torch.nn.functional.normalize(torch.randn(5, backbone.dim, generator=generator), dim=1)
    return StoredVectors(
        [(MemoryShard(vector_ids(earlier.clips), vectors.numpy()), vector_ids(earlier.clips))]
    )


def _train(
    name: str, backbone: Backbone, task: TaskData, memory: StoredVectors, processes: int, folder: Path
) -> tuple[Method, list[float]]:
    method = start_method(name, backbone, {**SETTINGS, **NOISE.get(name, {})}, None)
    store = CheckpointStore(folder / f"{name}-{processes}", "run")
    with training_group(method, None, task, processes) as group:
        losses = learn_task(method, task, memory, checkpoints=store, group=group)
    assert store.load() is not None
    return method, losses


def _assert_equal_training(
    name: str, backbone: Backbone, task: TaskData, memory: StoredVectors, folder: Path
) -> None:
    one, losses = _train(name, backbone, task, memory, 1, folder)
    two, replicated = _train(name, backbone, task, memory, 2, folder)
    assert replicated == pytest.approx(losses, rel=1e-4)
    expected, actual = one.state_dict(), two.state_dict()
    assert expected.keys() == actual.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(actual[key].float(), tensor.float(), rtol=0, atol=2e-4, msg=key)
    assert not multiprocessing.active_children()


# One method draws noise, and one has a memory of its own. The fast tests compare the parts of all methods.
REPLICATED = ("ffa_tame", "strata", "er")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in REPLICATED else pytest.mark.endurance)
        for name in (*STEPPED, "er", "ewc", "lwf")
    ],
)
def test_two_processes_have_the_loss_and_weights_of_one(
    backbone: Backbone, task: TaskData, memory: StoredVectors, tmp_path: Path, name: str
) -> None:
    _assert_equal_training(name, backbone, task, memory, tmp_path)


class _SimulatedGroup(ProcessGroup):
    """One of two processes that takes its own rows for those of the other, and keeps what it would send."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank, 2)
        self.sent: list[torch.Tensor] = []

    def gather(self, part: torch.Tensor, count: int) -> torch.Tensor:
        self.sent.append(part.detach())
        return torch.cat([part, part])[:count]


@pytest.mark.parametrize("micro_batch", [None, 1])
@pytest.mark.parametrize("name", STEPPED)
def test_each_process_loads_its_videos_and_encodes_its_rows_as_one_process_does(
    backbone: Backbone, task: TaskData, name: str, micro_batch: int | None
) -> None:
    batch = task.pairs[:3]
    sent = []
    for group in (_SimulatedGroup(0), _SimulatedGroup(1), ProcessGroup()):
        method = start_method(name, backbone, {**SETTINGS, **NOISE.get(name, {})}, None)
        method.begin_task("task", "task")
        method.train(True)
        torch.manual_seed(0)
        videos = load_frames([batch[row].clip for row in group.rows(len(batch)).tolist()])
        texts = [pair.caption for pair in batch]
        recorded: list[torch.Tensor] = []
        sent.append(recorded if group.size == 1 else group.sent)
        with group.distributed_batches(videos, len(batch)), micro_batches(micro_batch):
            encode = batch_encoder.get()

            def record(function: Any, rows: torch.Tensor, encode: Any = encode) -> Any:
                recorded.extend(vectors := encode(function, rows))  # noqa: B023
                return vectors

            with variable_set(batch_encoder, record):
                loss = method.loss(videos, texts, None)
        assert loss.isfinite()
    assert len(sent[2]) > 1
    for first, second, whole in zip(*sent, strict=True):
        torch.testing.assert_close(torch.cat([first, second])[: len(whole)], whole.detach())


@pytest.mark.slow
def test_replicas_end_with_an_error_of_the_training(backbone: Backbone, task: TaskData) -> None:
    method = start_method("strata", backbone, SETTINGS, None)

    def stop(progress: TrainingProgress) -> None:
        raise InterruptedError(f"step {progress.step}")

    with training_group(method, None, task, 2) as group:
        assert len(multiprocessing.active_children()) == 1
        with pytest.raises(InterruptedError, match="step 1"):
            learn_task(method, task, report=stop, group=group)
    assert not multiprocessing.active_children()
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
def test_killed_replica_is_reported(backbone: Backbone, task: TaskData) -> None:
    method = start_method("strata", backbone, SETTINGS, None)

    def kill(progress: TrainingProgress) -> None:
        for replica in multiprocessing.active_children():
            replica.kill()

    with pytest.raises(ReplicaKilled, match="signal 9"), training_group(method, None, task, 2) as group:
        learn_task(method, task, report=kill, group=group)
    assert not multiprocessing.active_children()
    assert not torch.distributed.is_initialized()


def test_task_without_captions_starts_no_process(
    backbone: Backbone, random_task: Callable[..., TaskData]
) -> None:
    task = random_task("bare", [[], []])
    with training_group(start_method("strata", backbone, {}, None), None, task, 2) as group:
        assert group is ALONE
        assert not multiprocessing.active_children()
