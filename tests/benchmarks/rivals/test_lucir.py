"""LUCIR: its three terms against loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks.rivals.replay_methods import margin_ranking_loss
from models.backbones.backbone import Backbone
from tests.trainer.methods.method_driver import (
    begin_second_task,
    random_frames,
    random_unit_vectors,
    replay_method,
    scale_projections,
)
from trainer.methods.base import in_task_loss

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


def cosine(left: Tensor, right: Tensor) -> float:
    return sum(a * b for a, b in zip(left.tolist(), right.tolist(), strict=True))


def slow_ranking(anchors: Tensor, targets: Tensor, current: int, margin: float, hardest: int) -> float:
    """Return the margin ranking loss of past anchors, by sorted lists."""
    total = 0.0
    for i in range(current, len(anchors)):
        own = cosine(anchors[i], targets[i])
        others = sorted((cosine(anchors[i], targets[j]) for j in range(current)), reverse=True)[:hardest]
        total += sum(max(margin - own + other, 0.0) for other in others)
    return total / (len(anchors) - current)


@pytest.mark.parametrize(("current", "hardest", "margin"), [(4, 2, 0.5), (3, 1, 0.1), (2, 5, 1.5)])
def test_margin_ranking_loss_equals_a_slow_loop(current: int, hardest: int, margin: float) -> None:
    torch.manual_seed(current)
    queries, videos = random_unit_vectors(7), random_unit_vectors(7)
    expected = slow_ranking(queries, videos, current, margin, hardest)
    expected += slow_ranking(videos, queries, current, margin, hardest)
    found = margin_ranking_loss(queries, videos, current, margin, hardest)
    assert float(found) == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize("past_tasks", [1, 2])
def test_loss_is_the_sum_of_three_terms(backbone: Backbone, past_tasks: int) -> None:
    settings = {"less_forget": 3.0, "ranking": 0.7, "margin": 0.4, "hard_negatives": 2}
    method = replay_method("lucir", backbone, logit_scale=20.0, **settings)
    _, old_texts = begin_second_task(method)
    if past_tasks == 2:
        method.end_task()
        rows = {name: values.clone() for name, values in method.memory.rows().items()}
        method.memory.add_to_ring({name: r + 1 if name == "tasks" else r for name, r in rows.items()})
        method.record_task("two", "two", old_texts)
        method.begin_task("three", "three")
    scale_projections(method.model, seed=8)
    frames = random_frames(1, 3)
    with torch.no_grad():
        torch.manual_seed(4)
        past = method.memory.sample(3, before=past_tasks)
        torch.manual_seed(4)
        loss = float(method.loss(frames, TEXTS, None))
        ids = torch.cat([method.tokenize(TEXTS), past["ids"]])
        joined = torch.cat([frames, past["frames"]])
        queries, videos = method.encode(joined, ids)
        old_queries, old_videos = method.encode(joined, ids, method.previous_model)
    assert len(past["ids"]) == (2 if past_tasks == 1 else 3)
    count = len(ids)
    forgotten = sum(
        2 - cosine(queries[i], old_queries[i]) - cosine(videos[i], old_videos[i]) for i in range(count)
    )
    ranking = slow_ranking(queries, videos, 3, 0.4, 2) + slow_ranking(videos, queries, 3, 0.4, 2)
    expected = float(in_task_loss(queries, videos, 20.0))
    expected += 3.0 * math.sqrt(past_tasks) * forgotten / (2 * count) + 0.7 * ranking / 2
    assert loss == pytest.approx(expected, rel=1e-4)
