"""The overlay that brings Milvus along fits the compose file that it is laid over."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.core.settings import Settings
from tests.milvus import VARIABLE

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docker-compose.milvus.yml").read_text()
OVERLAY: dict[str, Any] = yaml.safe_load(TEXT)
BASE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
ITS_OWN = ("milvus", "milvus-etcd", "milvus-minio")


def test_it_changes_those_that_read_or_write_vectors_and_adds_its_own() -> None:
    assert set(OVERLAY["services"]) == {"api", "worker-gpu", *ITS_OWN}
    assert set(OVERLAY["services"]) - set(ITS_OWN) <= set(BASE["services"])
    for name in ("api", "worker-gpu"):
        service = OVERLAY["services"][name]
        given = {
            key.removeprefix("CINESTRATA_").lower(): value for key, value in service["environment"].items()
        }
        assert set(given) <= set(Settings.model_fields)
        assert given["vector_store"] == "milvus"
        assert given["milvus_uri"] == "http://milvus:19530"
        assert service["depends_on"]["milvus"]["condition"] == "service_healthy"
        extra = service["build"]["args"]["EXTRAS"]
        assert f"ARG {'EXTRAS'}" in (ROOT / "docker/Dockerfile").read_text()
        assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("name", ITS_OWN)
def test_each_part_is_pinned_watched_kept_and_not_published(name: str) -> None:
    service = OVERLAY["services"][name]
    assert re.search(r":(v\d+\.\d+\.\d+|RELEASE\.\S+)$", service["image"])
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert "no-new-privileges:true" in service["security_opt"]
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert "ports" not in service
    (volume,) = service["volumes"]
    assert volume.split(":")[0] in OVERLAY["volumes"]
    assert all(after["condition"] == "service_healthy" for after in service.get("depends_on", {}).values())


def test_its_secrets_have_no_default_and_the_example_names_them() -> None:
    required = set(re.findall(r"\$\{(\w+):\?", TEXT))
    assert required == set(re.findall(r"\$\{(\w+)", TEXT)) == {"MILVUS_PASSWORD", "MILVUS_STORAGE_PASSWORD"}
    example = (ROOT / ".env.example").read_text()
    assert all(re.search(rf"^#{name}=$", example, re.MULTILINE) for name in required)


def test_settings_that_the_page_names_exist() -> None:
    page = (ROOT / "docs/scaling.md").read_text()
    known = {f"CINESTRATA_{name.upper()}" for name in Settings.model_fields} | {VARIABLE}
    assert set(re.findall(r"CINESTRATA_[A-Z]+(?:_[A-Z]+)*\b(?!_)", page)) <= known
    for target in re.findall(r"\]\(([^)#]+)", page):
        assert target.startswith("http") or (ROOT / "docs" / target).exists(), target
