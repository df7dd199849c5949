"""The overlay and the environment of the container deployment fit docker-compose.yml, and its faults the containers."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from benchmarks.chaos.container_deployment import ContainerDeployment, ContainerNetwork
from benchmarks.chaos.data_volume import DataVolume
from benchmarks.chaos.fault_kinds import available_faults

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the data folder gets the user of the images")


@pytest.fixture
def deployment(tmp_path: Path) -> ContainerDeployment:
    return ContainerDeployment(tmp_path, tmp_path / "data")


def test_overlay_names_services_and_volumes_of_the_compose_file(
    tmp_path: Path, deployment: ContainerDeployment
) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    overlay = json.loads((tmp_path / "overlay.json").read_text())
    assert overlay["services"].keys() <= compose["services"].keys()
    assert overlay["volumes"].keys() <= compose["volumes"].keys()
    assert overlay["volumes"]["data"]["driver_opts"]["device"] == str(deployment.data)
    for name in ("api", "worker-cpu", "worker-gpu", "postgres"):
        networks = set(overlay["services"][name]["networks"])
        assert networks <= {"default", *overlay["networks"]}
        assert networks & overlay["networks"].keys()


def test_environment_has_every_required_variable(tmp_path: Path, deployment: ContainerDeployment) -> None:
    required = re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text())
    environment = dict(
        line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if line
    )
    assert all(environment[name] for name in required)
    assert deployment.headers == {"X-API-Key": environment["CINESTRATA_API_KEY"]}


def test_faults_strike_every_container_and_the_network(
    tmp_path: Path, deployment: ContainerDeployment
) -> None:
    deployment.networks["api"] = ContainerNetwork("network", "container")
    with closing(DataVolume(tmp_path / "volume")) as volume:
        kinds = {fault.kind for fault in available_faults(deployment, volume)}
    for role in ("api", "redis", "postgresql", "learning worker", "probing worker"):
        assert {f"kill {role}", f"stop {role} past its lease"} <= kinds
    assert "cut the network of api to the database" in kinds
    assert "freeze the network of api to the database" not in kinds
    assert "read-only data folder" not in kinds
    assert "kill at: task trained" in kinds
    assert "kill at: deletion committed" not in kinds, "the API passes it"
