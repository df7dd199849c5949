"""Sequential fine-tuning: which weights a step reaches."""

from __future__ import annotations

import torch

from tests.trainer.conftest import untrained_backbone
from trainer.methods import Method, start_method

FRAMES = 2
TEXTS = ["a red circle", "a blue star"]


def _step(**settings: object) -> tuple[Method, dict[str, torch.Tensor]]:
    """One optimiser step; the weights before and after it."""
    torch.manual_seed(1)
    method = start_method("finetune", untrained_backbone(FRAMES), settings, None)
    before = method.release().tensors
    method.begin_task("one", "one")
    optimiser = torch.optim.AdamW(method.parameter_groups())
    frames = torch.randint(0, 256, (2, FRAMES, 56, 56, 3), dtype=torch.uint8)
    method.loss(frames, TEXTS, None).backward()
    optimiser.step()
    return method, before


def test_one_rate_reaches_all_weights_but_the_temperature() -> None:
    method, before = _step(learning_rate=1e-3)
    after = method.release().tensors
    assert [n for n, t in after.items() if torch.equal(t, before[n])] == ["clip.logit_scale"]


def test_words_take_steps_of_their_own_and_only_those_that_were_read() -> None:
    method, before = _step(learning_rate=1e-4, word_learning_rate=1e-2, weight_decay=0.2)
    name = next(n for n in before if n.endswith("token_embedding.weight"))
    moved = (method.release().tensors[name] - before[name]).abs()
    read = torch.unique(method.backbone.tokenize(TEXTS))
    assert moved.any(dim=1).nonzero()[:, 0].tolist() == read.tolist()
    # The first step of Adam is as long as the rate.
    torch.testing.assert_close(moved[read].max(), torch.tensor(1e-2), rtol=0.01, atol=0)
    groups = method.parameter_groups()
    parameters = [p for group in groups for p in group["params"]]
    assert len({id(p) for p in parameters}) == len(parameters)
