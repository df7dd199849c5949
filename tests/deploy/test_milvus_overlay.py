"""docker-compose.milvus.yml, the overlay that adds Milvus."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

MILVUS_SERVICES = ("milvus", "milvus-etcd", "milvus-minio")


@pytest.fixture(scope="module")
def overlay(root: Path) -> dict[str, Any]:
    """The content of the overlay."""
    content: dict[str, Any] = yaml.safe_load((root / "docker-compose.milvus.yml").read_text())
    return content


@pytest.mark.parametrize("name", MILVUS_SERVICES)
def test_milvus_services_are_pinned_healthy_and_private(overlay: dict[str, Any], name: str) -> None:
    service = overlay["services"][name]
    assert re.search(r":(v\d+\.\d+\.\d+|RELEASE\.\S+)$", service["image"])
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert "no-new-privileges:true" in service["security_opt"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert "ports" not in service
    (volume,) = service["volumes"]
    assert volume.split(":")[0] in overlay["volumes"]
    assert all(after["condition"] == "service_healthy" for after in service.get("depends_on", {}).values())


def test_overlay_secrets_have_no_default_and_the_example_names_them(root: Path) -> None:
    text = (root / "docker-compose.milvus.yml").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == set(re.findall(r"\$\{(\w+)", text)) == {"MILVUS_PASSWORD", "MILVUS_STORAGE_PASSWORD"}
    example = (root / ".env.example").read_text()
    assert all(re.search(rf"^#{name}=$", example, re.MULTILINE) for name in required)
