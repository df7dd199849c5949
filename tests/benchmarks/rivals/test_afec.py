"""AFEC: both penalties against loops, the weights of the expansion, and the effect of the second penalty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.backbones.backbone import Backbone
from tests.trainer.methods.method_driver import (
    TEXTS,
    create_method,
    learn_steps,
    random_frames,
    run_steps,
    weights,
    write_task,
)
from trainer.methods.base import in_task_loss
from trainer.training_loop import learn_task

BIAS = "clip.visual.ln_post.bias"  # a small weight on which every video depends


def afec_in_second_task(backbone: Backbone, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """Return AFEC at the start of its second task, and the data of this task."""
    first, second = (
        write_task(folder, name, [[f"{text} {name}"] for text in TEXTS]) for name in ("one", "two")
    )
    method = create_method("afec", backbone, epochs=1, batch_size=4, fisher_batch=2, **settings)
    learn_task(method, first)
    method.begin_task("two", "two")
    return method, second


def test_first_task_is_that_of_ewc(backbone: Backbone) -> None:
    afec, ewc = (create_method(name, backbone) for name in ("afec", "ewc"))
    for method in (afec, ewc):
        learn_steps(method, "one", range(3))
    assert afec.fingerprint() == ewc.fingerprint()
    assert afec.expanded is None
    assert not any(name.startswith("expanded.") for name in afec.release().tensors)


def test_loss_equals_equation_10_by_a_slow_loop(backbone: Backbone, tmp_path: Path) -> None:
    method, task = afec_in_second_task(backbone, tmp_path, penalty=3e2, expansion_penalty=20.0)
    run_steps(method, range(3))
    assert method.convergence_loss().item() == 0, "the first epoch has no second penalty"
    method.begin_epoch(1, task.pairs)
    anchor = weights(method.expanded)
    # F_e, by one backward pass per small batch.
    fisher = {name: torch.zeros_like(weight).double() for name, weight in anchor.items()}
    batches = list(method.small_batches(task.pairs, 2))
    for frames, texts in batches:
        method.expanded.zero_grad()
        in_task_loss(*method.embed(frames, texts, method.expanded), method.config.logit_scale).backward()
        for name, weight in method.expanded.named_parameters():
            if weight.grad is not None:
                fisher[name] += weight.grad.double() ** 2 / len(batches)
    assert fisher[BIAS].max() > 1e-6
    torch.testing.assert_close(method.expanded_fisher[BIAS].double(), fisher[BIAS], rtol=1e-3, atol=1e-9)
    run_steps(method, range(3, 5))  # θ and θ_e move on; the penalty keeps the θ_e of the end of the epoch
    assert not torch.equal(weights(method.expanded)[BIAS], anchor[BIAS])
    old = new = 0.0
    for name, weight in weights(method.model).items():
        moved = weight.double()
        new += float((fisher[name] * (moved - anchor[name].double()) ** 2).sum())
        if name in method.importance:
            distance = (moved - method.anchor[name].double()) ** 2
            old += float((method.importance[name].double() * distance).sum())
    frames = random_frames(9)
    task_loss, expansion = (
        in_task_loss(*method.embed(frames, TEXTS, model), method.config.logit_scale).item()
        for model in (method.model, method.expanded)
    )
    assert min(old, new) > 1e-6
    assert method.convergence_loss().item() == pytest.approx(20.0 / 2 * new, rel=1e-3)
    expected = task_loss + 3e2 / 2 * old + 20.0 / 2 * new + expansion
    assert method.loss(frames, TEXTS, None).item() == pytest.approx(expected, rel=1e-4)
