"""Cached gradients: a loss whose towers encode a batch in parts has the gradients of the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.rivals import METHODS
from models.backbones.backbone import Backbone
from models.backbones.tower_computation import gradient_checkpointing, micro_batches, mixed_precision
from tests.trainer.methods.method_driver import TEXTS, create_method, learn_steps, random_frames
from tests.trainer.methods.small_driver import random_small_backbone

STEPPED = sorted(
    name for name, method in METHODS.items() if method.is_trainable and not method.is_closed_form
)
PAPERS = ["bmu_moco", "ccmr", "ctp", "ffa_tame", "finetune", "joint", "strata"]


def _gradients(
    name: str, backbone: Backbone, size: int | None, *, noisy: bool = False, **settings: Any
) -> tuple[float, list[Tensor]]:
    """Compute the loss and gradients of the second task's first step."""
    torch.manual_seed(3)
    method = create_method(name, backbone, **settings)
    learn_steps(method, "first", [0])
    method.begin_task("second", "second")
    method.train(noisy)
    for group in method.parameter_groups():
        for parameter in group["params"]:
            parameter.grad = None
    references = torch.nn.functional.normalize(torch.randn(4, backbone.dim), dim=-1)
    with micro_batches(size):
        loss = method.loss(random_frames(7), TEXTS, references)
    loss.backward()
    trained = [parameter for group in method.parameter_groups() for parameter in group["params"]]
    return float(loss.detach()), [torch.zeros(1) if p.grad is None else p.grad for p in trained]


def _assert_equal(one: tuple[float, list[Tensor]], other: tuple[float, list[Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in other[1])
    assert largest > 0
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5 * largest)


@pytest.mark.parametrize("name", STEPPED)
def test_gradients_do_not_depend_on_the_micro_batch(backbone: Backbone, name: str) -> None:
    _assert_equal(_gradients(name, backbone, 3), _gradients(name, backbone, None))  # parts of 3 and 1 pairs


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_gradients_on_small_do_not_depend_on_the_micro_batch(name: str) -> None:
    backbone = random_small_backbone()
    whole = _gradients(name, backbone, None)
    for size in (1, 3):
        _assert_equal(_gradients(name, backbone, size), whole)


def test_noise_does_not_depend_on_the_micro_batch(backbone: Backbone) -> None:
    settings = {"dropout": 0.5, "first_task": "routed"}
    whole = _gradients("ffa_tame", backbone, None, noisy=True, **settings)
    for size in (1, 3):
        _assert_equal(_gradients("ffa_tame", backbone, size, noisy=True, **settings), whole)
    assert whole[0] != _gradients("ffa_tame", backbone, 3, noisy=False, **settings)[0]


def test_parts_are_computed_in_the_precision_of_the_batch(backbone: Backbone) -> None:
    with mixed_precision(), gradient_checkpointing():
        whole, parts = (_gradients("finetune", backbone, size) for size in (None, 1))
    assert parts[0] == pytest.approx(whole[0], rel=1e-3)
    for mine, theirs in zip(parts[1], whole[1], strict=True):
        assert torch.linalg.vector_norm(mine - theirs) <= 0.05 * torch.linalg.vector_norm(theirs) + 1e-6
