"""Files that operators use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="session")
def root() -> Path:
    """The root folder of the repository."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def compose(root: Path) -> dict[str, Any]:
    """The content of docker-compose.yml."""
    content: dict[str, Any] = yaml.safe_load((root / "docker-compose.yml").read_text())
    return content


@pytest.fixture(scope="session")
def manifests(root: Path) -> list[dict[str, Any]]:
    """The Kubernetes manifests."""
    return list(yaml.safe_load_all((root / "deploy/kubernetes/cinestrata.yaml").read_text()))
