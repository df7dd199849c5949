"""LwF: the loss against loops, and the teacher of each task."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks.rivals.lwf import distillation_loss
from models.backbones.backbone import Backbone
from tests.trainer.methods.method_driver import TEXTS, create_method, learn_steps, random_frames, weights
from trainer.methods.base import in_task_loss


def add_noise(model: Backbone) -> None:
    """Add noise to all trained weights."""
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.02 * torch.randn_like(weight)


def softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp((value - max(row)) / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def slow_distillation_loss(now: Tensor, before: Tensor, temperature: float) -> float:
    """Return T² times the cross-entropy of softened rows, mean over rows."""
    total = 0.0
    for row, old_row in zip(now.tolist(), before.tolist(), strict=True):
        soft, old_soft = softmax(row, temperature), softmax(old_row, temperature)
        total -= sum(target * math.log(share) for target, share in zip(old_soft, soft, strict=True))
    return temperature**2 * total / len(now)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_distillation_loss_equals_a_slow_loop(temperature: float) -> None:
    torch.manual_seed(1)
    now, before = 4 * torch.randn(3, 5), 4 * torch.randn(3, 5)
    found = distillation_loss(now, before, temperature).item()
    assert found == pytest.approx(slow_distillation_loss(now, before, temperature), rel=1e-4)
    assert found > distillation_loss(before, before, temperature).item()


def test_teacher_is_the_model_before_the_task(backbone: Backbone) -> None:
    method = create_method("lwf", backbone)
    for task, trained in (("bare", False), ("one", True)):
        method.begin_task(task, task, trained=trained)
        assert method.teacher is None
        method.end_task()
        method.record_task(task, task, [])
    learned = weights(method.model)
    resumed = create_method("lwf", backbone, method.release())
    for run in (method, resumed):
        run.begin_task("two", "two")
        add_noise(run.model)
        assert all(torch.equal(weights(run.teacher)[name], weight) for name, weight in learned.items())
        assert not any(weight.requires_grad for weight in run.teacher.parameters())
        run.end_task()
        assert run.teacher is None


def test_loss_equals_slow_loops_and_trains_both_towers(backbone: Backbone) -> None:
    method = create_method("lwf", backbone, distillation=0.7, temperature=3.0, logit_scale=20.0)
    learn_steps(method, "one", [1])
    method.begin_task("two", "two")
    add_noise(method.model)
    with torch.no_grad():
        queries, videos = method.embed(random_frames(2), TEXTS)
        old_queries, old_videos = method.embed(random_frames(2), TEXTS, method.teacher)
    now, before = 20 * queries @ videos.T, 20 * old_queries @ old_videos.T
    kept = (slow_distillation_loss(now, before, 3.0) + slow_distillation_loss(now.T, before.T, 3.0)) / 2
    expected = in_task_loss(queries, videos, 20.0).item() + 0.7 * kept
    loss = method.loss(random_frames(2), TEXTS, None)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    loss.backward()
    for weight in (method.model.clip.visual.proj, method.model.clip.text_projection):
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0
    assert all(weight.grad is None for weight in method.teacher.parameters())
