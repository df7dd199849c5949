"""Sequential fine-tuning: the weights that a step changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.releases.release_tensors import tensors_with_prefix
from tests.trainer.methods.method_driver import create_method, run_steps

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
