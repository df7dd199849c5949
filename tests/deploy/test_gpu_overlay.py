"""docker-compose.gpu.yml, the overlay for a machine with a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

SERVICES = ("api", "migrate", "worker-cpu", "worker-gpu")
DEVICE = {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
FILES = ("docker-compose.yml", "docker-compose.gpu.yml")


@pytest.fixture(scope="module")
def overlay(root: Path) -> dict[str, Any]:
    """The content of the overlay."""
    content: dict[str, Any] = yaml.safe_load((root / FILES[1]).read_text())
    return content


def test_learning_worker_and_api_reserve_the_device(overlay: dict[str, Any]) -> None:
    services = overlay["services"]
    reserved = {
        name: service["deploy"]["resources"]["reservations"]["devices"]
        for name, service in services.items()
        if "deploy" in service
    }
    assert reserved == {"api": [DEVICE], "worker-gpu": [DEVICE]}


def test_all_services_of_the_product_share_the_image_with_cuda(
    root: Path, overlay: dict[str, Any], compose: dict[str, Any]
) -> None:
    services = overlay["services"]
    assert {name for name, service in compose["services"].items() if "build" in service} == set(SERVICES)
    assert set(services) == set(SERVICES)
    for service in services.values():
        assert service["build"] == {"args": {"ACCELERATOR": "gpu"}}
        assert set(service) <= {"build", "deploy", "environment"}
    project = (root / "pyproject.toml").read_text()
    assert re.search(r'^gpu = \["faiss-gpu\b', project, re.MULTILINE)
