"""The number of operators that a training step calls, which limits small steps on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu.tower_checks import profile_second_step
from tests.trainer.methods.method_driver import create_method, random_backbone, write_task
from trainer.training_loop import learn_task

# Measured counts and a twentieth more. Each weight had about ten operators of its own before AdamW was fused.
BOUNDS = {"bmu_moco": 1330, "ccmr": 1200, "ctp": 2330, "ffa_tame": 1340, "finetune": 816, "strata": 1226}


@pytest.mark.parametrize("name", BOUNDS)
def test_step_calls_few_operators(name: str, tmp_path: Path) -> None:
    backbone = random_backbone()
    settings = {"epochs": 1, "batch_size": 2, "precision": "bfloat16"}
    first = create_method(name, backbone, **settings)
    learn_task(first, write_task(tmp_path, "one", [[f"video {number}"] for number in range(2)]))
    method = create_method(name, backbone, first.release(), **settings)
    count = profile_second_step(method)
    learn_task(method, write_task(tmp_path, "two", [[f"clip {number}"] for number in range(4)]))
    assert 0 < count() <= BOUNDS[name]
