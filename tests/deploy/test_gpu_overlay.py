"""docker-compose.gpu.yml, the overlay for a machine with a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.core.settings import Settings

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


def test_settings_of_queries_default_to_the_processor_and_are_documented(
    root: Path, overlay: dict[str, Any]
) -> None:
    passed = {
        name: value
        for service in overlay["services"].values()
        for name, value in service.get("environment", {}).items()
    }
    assert passed == {
        name: f"${{{name}:-cpu}}" for name in ("CINESTRATA_QUERY_DEVICE", "CINESTRATA_INDEX_DEVICE")
    }
    example = (root / ".env.example").read_text()
    for name in passed:
        field = name.removeprefix("CINESTRATA_").lower()
        assert Settings.model_fields[field].default == "cpu"
        assert re.search(rf"^#{name}=cuda$", example, re.MULTILINE)


def test_deployment_without_the_overlay_has_no_gpu(root: Path, compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert "deploy" not in service
        assert "runtime" not in service
        assert "ACCELERATOR" not in service.get("build", {}).get("args", {})
    base = (root / FILES[0]).read_text()
    assert "CINESTRATA_QUERY_DEVICE" not in base
    assert "CINESTRATA_INDEX_DEVICE" not in base


def test_readme_names_the_command_of_the_overlay(root: Path) -> None:
    command = "docker compose -f docker-compose.yml -f docker-compose.gpu.yml up --build --wait"
    assert command in (root / "README.md").read_text()
    assert command in (root / FILES[1]).read_text()


def test_engine_merges_the_files(root: Path, tmp_path: Path) -> None:
    """Compose itself accepts both deployments; this needs its command, but no running engine."""
    version = ["docker", "compose", "version"]
    if shutil.which("docker") is None or subprocess.run(version, capture_output=True, check=False).returncode:
        pytest.skip("Docker Compose is not installed")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "POSTGRES_PASSWORD": "p",
        "CINESTRATA_API_KEY": "k",
        "CINESTRATA_MEDIA": str(tmp_path),
        "CINESTRATA_QUERY_DEVICE": "cuda",
    }

    def merged(*files: str) -> dict[str, Any]:
        options = [option for file in files for option in ("-f", file)]
        command = ["docker", "compose", "--env-file", os.devnull, *options, "config", "--format", "json"]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        services: dict[str, Any] = json.loads(done.stdout)["services"]
        return services

    without, with_gpu = merged(FILES[0]), merged(*FILES)
    assert set(without) == set(with_gpu)
    devices = with_gpu["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert [(device["driver"], device["capabilities"]) for device in devices] == [("nvidia", ["gpu"])]
    assert with_gpu["api"]["environment"]["CINESTRATA_QUERY_DEVICE"] == "cuda"
    for name in SERVICES:
        assert with_gpu[name]["build"]["args"] == {"ACCELERATOR": "gpu"}
        assert with_gpu[name]["build"]["target"] == without[name]["build"]["target"]
        added = {"build", "deploy", "environment"}
        assert {k: v for k, v in with_gpu[name].items() if k not in added} == {
            k: v for k, v in without[name].items() if k not in added
        }
