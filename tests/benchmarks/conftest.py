"""Fixtures: a world of two small tasks, and protocol files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.learning.protocol import Protocol, load_protocol
from benchmarks.learning.task_preparation import prepare_tasks
from models.backbones.backbone import FrameSpec
from trainer.task_data import TaskData

SMALL: dict[str, Any] = {
    "title": "Small",
    "source": {
        "kind": "world",
        "domains": ["night-traffic", "microscope"],
        "seed": 3,
        "train": 2,
        "val": 1,
        "test": 3,
        "categories": 2,
        "captions": 2,
    },
    "backbone": "tiny",
    "frames": 2,
    "seeds": 2,
    "settings": {"epochs": 1, "batch_size": 4},
    "methods": ["zero_shot", "finetune"],
}
SPEC = FrameSpec(frames=2, size=56)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write a copy of the small protocol with other fields; returns its path."""

    def write(name: str = "small", **fields: Any) -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**SMALL, **fields}))
        return str(path)

    return write


@pytest.fixture
def small(write: Callable[..., str]) -> Protocol:
    return load_protocol(write())


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[TaskData]:
    """The tasks of the small protocol with their frames."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL))
    return prepare_tasks(load_protocol(str(folder / "small.yaml")), SPEC, folder / "frames")
