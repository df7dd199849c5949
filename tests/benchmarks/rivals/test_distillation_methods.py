"""LwF, VR-LwF and ZSCL: each loss against loops, the teacher of each task, and the drift over two tasks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.rivals.distillation import random_sentences
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from tests.trainer.methods.method_driver import (
    TEXTS,
    create_method,
    learn_steps,
    random_frames,
    run_steps,
    weights,
)
from trainer.methods.base import in_task_loss

NAMES = ["lwf", "vr_lwf", "zscl"]
SENTENCES, WORDS = 5, 3  # the small settings of the driver


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


def test_random_sentences_are_enclosed_by_special_tokens(backbone: Backbone) -> None:
    torch.manual_seed(1)
    ids = random_sentences(backbone, 50, 4)
    start, *_, end = backbone.tokenize(["a red circle"])[0].tolist()
    assert [(row[0], row[-1]) for row in ids.tolist()] == [(start, end)] * 50
    assert backbone.end_of_text(ids).tolist() == [5] * 50
    assert 0 <= int(ids[:, 1:-1].min()) < int(ids[:, 1:-1].max()) < min(start, end)
    assert len(ids[:, 1:-1].unique()) > 150, "words of the whole vocabulary"


def test_teacher_of_each_task(backbone: Backbone) -> None:
    for name, first in (("lwf", False), ("vr_lwf", True), ("zscl", True)):
        method = create_method(name, backbone)
        method.begin_task("bare", "bare", trained=False)
        assert method.teacher is None
        method.end_task()
        method.record_task("bare", "bare", [])
        method.begin_task("one", "one")
        assert (method.teacher is not None) == first, name
        method.end_task()
        learn_steps(method, "one", [1])
        assert method.teacher is None
        tuned = weights(method.model)
        resumed = create_method(name, backbone, method.release())
        for run in (method, resumed):
            run.begin_task("two", "two")
            taught = weights(run.teacher)
            like = weights(backbone) if name == "zscl" else tuned
            assert all(torch.equal(taught[n], weight) for n, weight in like.items()), name
            add_noise(run.model)
            assert all(torch.equal(weights(run.teacher)[n], weight) for n, weight in taught.items())
            assert not any(weight.requires_grad for weight in run.teacher.parameters())


def second_task_method(name: str, backbone: Backbone, **settings: Any) -> Any:
    """Return a method in its second task whose weights differ from those of its teacher."""
    method = create_method(name, backbone, **settings)
    learn_steps(method, "one", [1])
    method.begin_task("two", "two")
    add_noise(method.model)
    return method


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_lwf_loss_equals_slow_loops(backbone: Backbone, temperature: float) -> None:
    method = second_task_method("lwf", backbone, distillation=0.7, temperature=temperature, logit_scale=20.0)
    with torch.no_grad():
        queries, videos = method.embed(random_frames(2), TEXTS)
        old_queries, old_videos = method.embed(random_frames(2), TEXTS, method.teacher)
        now, before = 20 * queries @ videos.T, 20 * old_queries @ old_videos.T
        distilled = slow_distillation_loss(now, before, temperature)
        distilled += slow_distillation_loss(now.T, before.T, temperature)
        expected = in_task_loss(queries, videos, 20.0).item() + 0.7 * distilled / 2
        assert method.loss(random_frames(2), TEXTS, None).item() == pytest.approx(expected, rel=1e-4)


def sentences_of_seed(backbone: Backbone, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return random_sentences(backbone, SENTENCES, WORDS)


def test_vr_lwf_loss_equals_slow_loops(backbone: Backbone) -> None:
    method = second_task_method("vr_lwf", backbone, distillation=0.7, temperature=3.0, logit_scale=20.0)
    ids = sentences_of_seed(backbone, 5)
    with torch.no_grad():
        queries, videos = method.embed(random_frames(2), TEXTS)
        now = 20 * videos @ encode_texts(method.model, ids)[0].T
        before = (
            20 * encode_frames(method.teacher, random_frames(2))[0] @ encode_texts(method.teacher, ids)[0].T
        )
        expected = in_task_loss(queries, videos, 20.0).item() + 0.7 * slow_distillation_loss(now, before, 3.0)
        torch.manual_seed(5)
        first = method.loss(random_frames(2), TEXTS, None).item()
        assert first == pytest.approx(expected, rel=1e-4)
        assert method.loss(random_frames(2), TEXTS, None).item() != first, "every step draws new sentences"


def test_zscl_loss_equals_slow_loops(backbone: Backbone) -> None:
    method = second_task_method("zscl", backbone, distillation=0.7, temperature=3.0, logit_scale=20.0)
    ids = sentences_of_seed(backbone, 5)
    with torch.no_grad():
        queries, videos = method.embed(random_frames(2), TEXTS)
        sentences = encode_texts(method.model, ids)[0]
        old_videos, old_sentences = (
            encode_frames(backbone, random_frames(2))[0],
            encode_texts(backbone, ids)[0],
        )
        before = 20 * old_videos @ old_sentences.T
        distilled = slow_distillation_loss(20 * videos @ old_sentences.T, before, 3.0)
        distilled += slow_distillation_loss(20 * sentences @ old_videos.T, before.T, 3.0)
        expected = in_task_loss(queries, videos, 20.0).item() + 0.7 * distilled
        torch.manual_seed(5)
        assert method.loss(random_frames(2), TEXTS, None).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("interval", "members"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (100, [5])])
def test_ensemble_of_zscl_is_the_mean_of_the_weights_along_training(
    interval: int, members: list[int], backbone: Backbone
) -> None:
    method = create_method("zscl", backbone, ensemble_interval=interval, learning_rate=1e-3)
    method.begin_task("one", "one")
    optimizer = torch.optim.AdamW(method.parameter_groups())
    path = [weights(method.model)]
    for _ in range(5):
        run_steps(method, [1], optimizer)
        path.append(weights(method.model))
    method.end_task()
    for name, weight in method.model.named_parameters():
        mean = sum(path[step][name].double() for step in [0, *members]) / (1 + len(members))
        torch.testing.assert_close(weight.double(), mean, rtol=1e-4, atol=1e-6)
    assert (path[5]["clip.visual.proj"] - path[0]["clip.visual.proj"]).abs().max() > 1e-3
    assert not any(name.startswith("ensemble.") for name in method.state_dict())
