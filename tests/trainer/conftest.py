"""Fixtures of the trainer's tests: one thread, and tasks of random frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from tests.trainer.methods.method_driver import write_task
from trainer.task_data import TaskData

# Tensors are small: a second thread costs more than it saves, above all if other processes run.
torch.set_num_threads(1)


@pytest.fixture
def random_task(tmp_path: Path) -> Callable[..., TaskData]:
    """``random_task(name, captions, splits=(), first_id=0)``: a task of random frames of the size of ``tiny``."""
    return partial(write_task, tmp_path, side=56)


def untrained_backbone(frames: int, name: str = "tiny") -> Backbone:
    """Return a small backbone with the same random weights in every process; ``lite2`` reads another frame."""
    torch.manual_seed(name == "lite2")
    backbone = tiny_backbone(frames + (name == "lite2"))
    backbone.name = name if name == "lite2" else backbone.name
    return backbone
