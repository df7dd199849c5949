"""The training loop: resumption, determinism, divergence, progress, schedule and hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from models.encoders.frozen_families import FROZEN_FAMILY
from models.routing.routing_profiles import VOCABULARY
from tests.trainer.methods.method_driver import InterruptedTraining, interrupt_at
from trainer import training_loop
from trainer.errors import TrainingDiverged
from trainer.methods import Method, MethodConfig, start_method
from trainer.task_data import Clip, Pair, StoredVectors, TaskData
from trainer.training_checkpoint import CheckpointStore, run_identity
from trainer.training_loop import TrainingProgress, fit, learn_task, learning_rate_factor


@pytest.fixture
def task(random_task: Callable[..., TaskData]) -> TaskData:
    return random_task("task", [[f"{number} in other words {c}" for c in range(2)] for number in range(4)])


class Shift(Method):
    """A minimal method: one weight per dimension with dropout, and a step counter."""

    name = "shift"
    family = FROZEN_FAMILY
    rate = 0.1

    def __init__(self, backbone: Backbone, config: MethodConfig) -> None:
        super().__init__(backbone, config)
        self.shift = nn.Parameter(torch.ones(6))
        self.idle = nn.Parameter(torch.ones(6))
        self.steps = torch.zeros(1)
        self.seen: list[Tensor | None] = []
        self.rates: list[float] = []
        self.training = False

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        self.trained = trained

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        self.seen.append(references)
        pixels = frames.float().mean(dim=(1, 2, 3)).repeat(1, 2) / 255
        return (nn.functional.dropout(self.shift, 0.5, self.training) * pixels).sum() + 0 * self.idle.sum()

    def after_step(self) -> None:
        self.steps += 1

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.shift], "lr": self.rate, "weight_decay": 0.1}]

    def train(self, mode: bool = True) -> None:
        self.training = mode

    def state_dict(self) -> dict[str, Tensor]:
        return {"shift": self.shift.detach(), "steps": self.steps}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.shift.data.copy_(tensors["shift"])
        self.steps.copy_(tensors["steps"])

    def encode_videos(self, frames: Tensor) -> Tensor:
        raise NotImplementedError

    def video_tensors(self) -> dict[str, Tensor]:
        return {"shift": self.shift}


def _shift(backbone: Backbone, **settings: Any) -> Shift:
    return Shift(backbone, MethodConfig(**{"epochs": 4, "batch_size": 3, **settings}))


class _Memory:
    def vectors(self, ids: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(7)
        vectors = rng.normal(size=(50, 128)).astype(np.float32)
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True))[ids]


@pytest.mark.parametrize("step", [1, 3, 4, 8, 11])
def test_interrupted_run_ends_with_the_same_bits(
    backbone: Backbone, task: TaskData, tmp_path: Path, step: int
) -> None:
    uninterrupted = _shift(backbone)
    losses = fit(uninterrupted, task)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    first = _shift(backbone)
    with pytest.raises(InterruptedTraining):
        fit(first, task, checkpoints=checkpoints, report=interrupt_at(step))
    assert not first.training
    torch.manual_seed(5)  # other use of random numbers in the process
    expected = torch.rand(3)
    torch.manual_seed(5)
    second = _shift(backbone)
    assert fit(second, task, checkpoints=checkpoints) == losses
    assert torch.equal(torch.rand(3), expected), "the global generator is restored"
    assert torch.equal(second.shift, uninterrupted.shift)
    assert second.steps == uninterrupted.steps == 12
    assert not torch.equal(first.shift, uninterrupted.shift)


def test_gradient_checkpointing_learns_the_same_bits(backbone: Backbone, task: TaskData) -> None:
    settings = {"epochs": 1, "batch_size": 4, "learning_rate": 1e-3, "first_learning_rate": 1e-3}
    learned = []
    for saving in (False, True):
        method = start_method("ffa_tame", backbone, {**settings, "checkpointing": saving}, None)
        learn_task(method, task)
        learned.append(method.state_dict())
    assert all(learned[0][name].equal(learned[1][name]) for name in learned[0])


def test_run_depends_on_seed_and_number_of_learned_tasks(backbone: Backbone, task: TaskData) -> None:
    runs = [_shift(backbone), _shift(backbone), _shift(backbone, seed=7), _shift(backbone)]
    runs[3].learned_tasks = runs[3].learned_tasks * 0 + [object()]  # type: ignore[list-item]
    for method in runs:
        fit(method, task)
    assert torch.equal(runs[0].shift, runs[1].shift)
    assert not torch.equal(runs[0].shift, runs[2].shift)
    assert not torch.equal(runs[0].shift, runs[3].shift)


def test_checkpoint_of_another_run_is_not_resumed(backbone: Backbone, task: TaskData, tmp_path: Path) -> None:
    one = CheckpointStore(tmp_path / "c", run_identity("task", {"lr": 1}))
    fit(_shift(backbone), task, checkpoints=one)
    other = CheckpointStore(tmp_path / "c", run_identity("task", {"lr": 2}))
    assert other.load() is None
    assert one.load() is not None
    one.clear()
    assert one.load() is None
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["checkpoint.json", "method.safetensors", "optimizer.pt"])
@pytest.mark.parametrize("damage", [None, b"", b"garbage"])
def test_damaged_checkpoint_restarts_training(
    backbone: Backbone, task: TaskData, tmp_path: Path, name: str, damage: bytes | None
) -> None:
    uninterrupted = _shift(backbone)
    fit(uninterrupted, task)
    checkpoints = CheckpointStore(tmp_path / "c", "run")
    with pytest.raises(InterruptedTraining):
        fit(_shift(backbone), task, checkpoints=checkpoints, report=interrupt_at(5))
    for folder in (tmp_path / "c").iterdir():
        (folder / name).unlink()
        if damage is not None:
            (folder / name).write_bytes(damage)
    (tmp_path / "c" / "epoch-00003.0.tmp").mkdir()
    again = _shift(backbone)
    fit(again, task, checkpoints=checkpoints)
    assert torch.equal(again.shift, uninterrupted.shift)
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"epoch-00003.0", "epoch-00004.0"}


def test_progress_is_reported_after_every_step(backbone: Backbone, task: TaskData) -> None:
    reports: list[TrainingProgress] = []
    losses = fit(_shift(backbone), task, report=reports.append)
    assert [(p.epoch, p.step) for p in reports] == [(1 + s // 3, s + 1) for s in range(12)]
    assert {(p.epochs, p.steps) for p in reports} == {(4, 12)}
    assert all(p.videos_per_second > 0 for p in reports)
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def test_references_are_sampled_at_every_step(backbone: Backbone, task: TaskData) -> None:
    method = _shift(backbone)
    fit(method, task, StoredVectors([(_Memory(), np.arange(50))]))
    assert {tuple(r.shape) for r in method.seen if r is not None} == {(3, 128)}
    assert len({float(r.sum()) for r in method.seen if r is not None}) > 1
    alone = _shift(backbone)
    fit(alone, task)
    assert set(alone.seen) == {None}


def test_divergence_names_step_and_learning_rate(backbone: Backbone, task: TaskData) -> None:
    class Diverging(Shift):
        def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
            loss = super().loss(frames, texts, references)
            return loss * float("nan") if self.steps == 1 else loss

    with pytest.raises(TrainingDiverged, match=r"loss became nan at step 2 with learning rate 0\.098"):
        fit(Diverging(backbone, MethodConfig(epochs=4, batch_size=3)), task)

    class Steep(Shift):
        def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
            return (self.shift - 1).abs().sqrt().sum()  # finite, with an infinite slope at 1

    with pytest.raises(TrainingDiverged, match=r"gradient became (nan|inf) at step 1"):
        fit(Steep(backbone, MethodConfig(epochs=4, batch_size=3)), task)


def test_losses_on_a_device_are_read_later_and_checked(
    backbone: Backbone, task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnDevice(Tensor):
        device = torch.device("cuda")  # type: ignore[assignment]

    class Diverging(Shift):
        def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
            return super().loss(frames, texts, references) * (float("nan") if self.steps == 4 else 1)

    at_once: list[TrainingProgress] = []
    losses = fit(_shift(backbone), task, report=at_once.append)
    step = training_loop._step
    monkeypatch.setattr(training_loop, "_READ_SECONDS", 1000)
    monkeypatch.setattr(training_loop, "_step", lambda *given: step(*given).as_subclass(OnDevice))
    later: list[tuple[int, TrainingProgress]] = []
    method = _shift(backbone)
    assert fit(method, task, report=lambda progress: later.append((int(method.steps), progress))) == losses
    assert [replace(progress, videos_per_second=0) for _, progress in later] == [
        replace(progress, videos_per_second=0) for progress in at_once
    ]
    assert [steps for steps, _ in later[:6]] == [1, 3, 3, 4, 6, 6], (
        "the first of an epoch, and all at its end"
    )

    checkpoints = CheckpointStore(tmp_path / "c", "run")
    diverging = Diverging(backbone, MethodConfig(epochs=4, batch_size=3))
    with pytest.raises(TrainingDiverged, match=r"loss became nan at step 5 with learning rate"):
        fit(diverging, task, checkpoints=checkpoints)
    checkpoint = checkpoints.load()
    assert checkpoint is not None
    assert checkpoint.epoch == 1


def test_gradients_are_clipped_over_optimized_parameters_only(backbone: Backbone, task: TaskData) -> None:
    norms: list[float] = []

    class Recording(Shift):
        def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
            return 1000 * self.shift.sum() + 1e6 * self.idle.sum()

        def after_step(self) -> None:
            assert self.shift.grad is not None
            norms.append(float(self.shift.grad.norm()))

    fit(Recording(backbone, MethodConfig(epochs=1, batch_size=3)), task)
    assert norms == pytest.approx([1.0] * 3, abs=1e-4)


def test_schedules() -> None:
    """A half-cosine follows the warm-up; steps train later epochs at a tenth of the rate."""
    plain = [learning_rate_factor(step, 10) for step in range(10)]
    assert plain[0] == 1
    assert plain[5] == pytest.approx(0.5)
    assert plain == sorted(plain, reverse=True)
    assert 0 < plain[-1] < 0.03
    warm = [learning_rate_factor(step, 10, warmup=0.35) for step in range(10)]
    assert warm[:4] == [0.25, 0.5, 0.75, 1]
    assert warm[4] == 1
    assert warm[4:] == sorted(warm[4:], reverse=True)
    assert [learning_rate_factor(step, 2, warmup=1) for step in range(2)] == [0.5, 1]
    assert [learning_rate_factor(step, 6, first_epoch=2) for step in range(6)] == [1, 1, 0.1, 0.1, 0.1, 0.1]


def test_task_without_captions_is_recorded_but_not_trained(
    backbone: Backbone, random_task: Callable[..., TaskData]
) -> None:
    task = random_task("bare", [[], []])
    method = _shift(backbone)
    assert learn_task(method, task) == []
    assert not method.trained
    assert method.steps == 0
    assert method.profiles.to_dense().tolist() == [[0.0] * VOCABULARY]
    frozen = start_method("zero_shot", backbone, {}, None)
    assert learn_task(frozen, random_task("captioned", [["a red circle"], ["two stars"]])) == []
    assert float(frozen.profiles.values.max()) > 1


def test_method_hooks_receive_validation_videos_and_training_pairs(
    backbone: Backbone, task: TaskData
) -> None:
    calls: list[object] = []

    class Recording(Shift):
        def after_epoch(self, validation: Sequence[Clip]) -> None:
            calls.append([clip.id for clip in validation])

        def end_task(self, pairs: Sequence[Pair] = ()) -> None:
            calls.append(list(pairs))

    learn_task(Recording(backbone, MethodConfig(epochs=2, batch_size=3)), task)
    assert calls == [[clip.id for clip in task.val]] * 2 + [task.pairs]


def test_steps_of_a_large_task_are_limited(backbone: Backbone, task: TaskData, tmp_path: Path) -> None:
    progress: list[TrainingProgress] = []
    whole = _shift(backbone, max_steps=7)  # two of the three batches of an epoch, rounded up
    losses = fit(whole, task, report=progress.append)
    assert whole.steps == 8
    assert [(p.step, p.steps, p.epoch) for p in progress][-1] == (8, 8, 4)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    with pytest.raises(InterruptedTraining):
        fit(_shift(backbone, max_steps=7), task, checkpoints=checkpoints, report=interrupt_at(5))
    resumed = _shift(backbone, max_steps=7)
    assert fit(resumed, task, checkpoints=checkpoints) == losses
    assert torch.equal(resumed.shift, whole.shift)
    assert fit(_shift(backbone, max_steps=100), task) == fit(_shift(backbone), task)
