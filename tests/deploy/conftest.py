"""Files that operators use, and the settings that they may name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from service.core.settings import Settings


def variables(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Environment variables of a settings model, nested models included."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from variables(field.annotation, f"{prefix}{name.upper()}__")
        else:
            yield f"{prefix}{name.upper()}"


@pytest.fixture(scope="session")
def root() -> Path:
    """The root folder of the repository."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def setting_variables() -> set[str]:
    """Environment variables of all settings."""
    return set(variables(Settings, "CINESTRATA_"))


@pytest.fixture(scope="session")
def compose(root: Path) -> dict[str, Any]:
    """The content of docker-compose.yml."""
    content: dict[str, Any] = yaml.safe_load((root / "docker-compose.yml").read_text())
    return content


@pytest.fixture(scope="session")
def manifests(root: Path) -> list[dict[str, Any]]:
    """The Kubernetes manifests."""
    return list(yaml.safe_load_all((root / "deploy/kubernetes/cinestrata.yaml").read_text()))
