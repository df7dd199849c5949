"""Losses against loops, and sequential fine-tuning."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.releases.release_tensors import tensors_with_prefix
from tests.trainer.methods.method_driver import create_method, run_steps
from trainer.methods.base import cross_task_loss, in_task_loss

SCALE = 7.0


@pytest.fixture
def vectors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return tuple(F.normalize(torch.randn(n, 6), dim=-1) for n in (4, 4, 3))


def _similarity(q: torch.Tensor, v: torch.Tensor) -> float:
    return math.exp(SCALE * float(q @ v))


def test_in_task_loss_equals_equations_7_and_9(vectors: tuple[torch.Tensor, ...]) -> None:
    texts, videos, _ = vectors
    video_to_text = text_to_video = 0.0
    for i in range(4):
        pair = _similarity(texts[i], videos[i])
        video_to_text -= math.log(pair / sum(_similarity(texts[j], videos[i]) for j in range(4))) / 4
        text_to_video -= math.log(pair / sum(_similarity(texts[i], videos[j]) for j in range(4))) / 4
    expected = (video_to_text + text_to_video) / 2
    assert float(in_task_loss(texts, videos, SCALE)) == pytest.approx(expected, rel=1e-5)
    assert float(in_task_loss(texts[:1], videos[:1], SCALE)) == 0.0, "a single pair"


def test_cross_task_loss_equals_equation_8(vectors: tuple[torch.Tensor, ...]) -> None:
    texts, videos, references = vectors
    expected = 0.0
    for i in range(4):
        batch = sum(_similarity(texts[i], videos[t]) for t in range(4))
        stored = sum(_similarity(texts[i], references[h]) for h in range(3))
        expected -= math.log(_similarity(texts[i], videos[i]) / (batch + stored)) / 4
    texts.requires_grad_(True)
    references.requires_grad_(True)
    loss = cross_task_loss(texts, videos, references, SCALE)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert references.grad is None
    assert texts.grad is not None


TWO_TEXTS = ["a red circle", "a blue star"]


def run_one_step(backbone: Backbone, **settings: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return a method after one optimizer step, and its weights from before the step."""
    method = create_method("finetune", backbone, **settings)
    before = tensors_with_prefix("", method.release().tensors)
    method.begin_task("one", "one")
    run_steps(method, [1], texts=TWO_TEXTS)
    return method, before


def test_step_changes_all_weights_except_the_temperature(backbone: Backbone) -> None:
    method, before = run_one_step(backbone, learning_rate=1e-3)
    after = tensors_with_prefix("", method.release().tensors)
    assert [n for n, t in after.items() if torch.equal(t, before[n])] == ["clip.logit_scale"]


def test_word_learning_rate_changes_only_tokens_of_the_batch(backbone: Backbone) -> None:
    method, before = run_one_step(backbone, learning_rate=1e-4, word_learning_rate=1e-2, weight_decay=0.2)
    name = next(n for n in before if n.endswith("token_embedding.weight"))
    change = (method.state_dict()[name] - before[name]).abs()
    tokens = torch.unique(method.backbone.tokenize(TWO_TEXTS))
    assert change.any(dim=1).nonzero()[:, 0].tolist() == tokens.tolist()
    # The first step of Adam has the length of the learning rate.
    torch.testing.assert_close(change[tokens].max(), torch.tensor(1e-2), rtol=0.01, atol=0)
    parameters = [p for group in method.parameter_groups() for p in group["params"]]
    assert len({id(p) for p in parameters}) == len(parameters)
