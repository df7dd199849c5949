"""iCaRL: herded exemplars and the distillation of similarities, against loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbones.backbone import Backbone
from tests.benchmarks.rivals.test_distillation_methods import slow_distillation_loss
from tests.benchmarks.rivals.test_exemplar_selection import slow_herding
from tests.trainer.methods.method_driver import (
    begin_second_task,
    random_frames,
    replay_method,
    scale_projections,
    write_task,
)
from trainer.methods.base import in_task_loss
from trainer.training_loop import learn_task

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


def test_loss_is_contrast_and_distillation_over_the_union(backbone: Backbone) -> None:
    method = replay_method("icarl", backbone, logit_scale=20.0, distillation=0.5)
    old_frames, old_texts = begin_second_task(method)
    scale_projections(method.model, seed=8)
    frames = torch.cat([random_frames(1, 3), old_frames])
    with torch.no_grad():
        queries, videos = method.embed(frames, TEXTS + old_texts)
        past_queries, past_videos = method.embed(frames, TEXTS + old_texts, method.previous_model)
        loss = float(method.loss(frames[:3], TEXTS, None))
    now, before = 20 * queries @ videos.T, 20 * past_queries @ past_videos.T
    distilled = (slow_distillation_loss(now, before, 1.0) + slow_distillation_loss(now.T, before.T, 1.0)) / 2
    contrast = float(in_task_loss(queries, videos, 20.0))
    assert loss == pytest.approx(contrast + 0.5 * distilled, rel=1e-4)


@pytest.mark.parametrize("name", ["er", "icarl"])
def test_memory_holds_the_herded_pairs_of_each_task_in_order(
    name: str, backbone: Backbone, tmp_path: Path
) -> None:
    method = replay_method(name, backbone, fill="herding", epochs=1, learning_rate=1e-3)
    first, second = (write_task(tmp_path, task, [[f"{task} {n}"] for n in range(9)]) for task in ("a", "b"))
    learn_task(method, first)
    frames = torch.from_numpy(np.stack([np.load(clip.frames_path) for clip in first.clips]))
    with torch.no_grad():
        features = torch.cat(method.embed(frames, [clip.captions[0] for clip in first.clips]), dim=-1)
    expected = frames[slow_herding(features, 6)]
    assert torch.equal(method.memory.rows()["frames"], expected)
    learn_task(method, second)
    assert torch.equal(method.memory.rows()["frames"][:3], expected[:3]), "algorithm 5 removes the last ones"
    assert method.memory.rows()["tasks"].tolist() == [0, 0, 0, 1, 1, 1]
