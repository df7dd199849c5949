"""The measured trainings of a check, whose training loop is replaced."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import training_checks
from benchmarks.gpu.check_plan import TrainingSize, plan_checks
from models.backbones.backbone_loading import load_backbone
from trainer.methods import start_method
from trainer.training_loop import TrainingProgress


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_a_training_is_measured_without_the_memory_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: int | None
) -> None:
    methods: list[weakref.ref[Any]] = []

    def start(name: str, backbone: Any, settings: Any, previous: None) -> Any:
        assert not any(method() for method in methods), "an earlier method is still in memory"
        method = start_method(name, backbone, settings, previous)
        methods.append(weakref.ref(method))
        return method

    def fit(method: Any, task: Any, report: Any) -> None:
        method.micro_batch = micro_batch
        for step in range(4):
            report(TrainingProgress(1 + step // 2, 2, step + 1, 4, 0.5, 1.0))

    monkeypatch.setattr(training_checks, "load_backbone", lambda name, frames: load_backbone("tiny", 2))
    monkeypatch.setattr(training_checks, "start_method", start)
    monkeypatch.setattr(training_checks, "fit", fit)
    plan = plan_checks("cpu", tmp_path)
    (tmp_path / plan.models[0]).mkdir()
    (tmp_path / plan.models[0] / "open_clip_model.safetensors").touch()
    figures = training_checks.measure_training(plan, TrainingSize(plan.models[0], "bmu_moco", 2, 2))
    assert len(methods) == 2
    assert figures.get("micro_batch") == figures.get("checkpointing_micro_batch") == micro_batch
