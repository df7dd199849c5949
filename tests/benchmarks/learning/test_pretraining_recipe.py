"""Pre-training of the shipped backbone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.learning.pretraining_recipe import PretrainingRecipe, pretrain


@pytest.mark.slow
def test_pretraining_reduces_the_loss_and_is_reproducible(tmp_path: Path) -> None:
    losses: list[float] = []
    recipe = PretrainingRecipe(steps=40, batch_size=4)
    pretrain(tmp_path / "a.safetensors", recipe, workers=0, report=lambda step, loss: losses.append(loss))
    assert losses[-1] < losses[0]
    pretrain(tmp_path / "b.safetensors", recipe, workers=0)
    first, second = load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "b.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
