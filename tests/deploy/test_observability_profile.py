"""The Compose profile ``observability``: files, paths, names and ports of its parts agree."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="module")
def mounted(root: Path, compose: dict[str, Any]) -> dict[str, dict[str, Path]]:
    """For each service of the profile the files that it sees, by path in the container."""
    return {
        name: {
            entry["target"]: root / compose["configs"][entry["source"]]["file"]
            for entry in compose["services"][name]["configs"]
        }
        for name in ("prometheus", "grafana")
    }


def test_prometheus_reads_its_rules_and_scrapes_the_api_with_a_key_of_its_own(
    compose: dict[str, Any], mounted: dict[str, dict[str, Path]]
) -> None:
    service = compose["services"]["prometheus"]
    config_path = next(
        part.partition("=")[2] for part in service["command"] if part.startswith("--config.file=")
    )
    config = yaml.safe_load(mounted["prometheus"][config_path].read_text())
    folder = config_path.rpartition("/")[0]
    assert {f"{folder}/{name}" for name in config["rule_files"]} <= mounted["prometheus"].keys()
    (job,) = config["scrape_configs"]
    (secret,) = service["secrets"]
    assert job["authorization"]["credentials_file"] == secret["target"]
    assert compose["secrets"] == {secret["source"]: {"environment": "METRICS_KEY"}}
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert compose["services"][host]["ports"][0].endswith(f":{port}")


@pytest.mark.parametrize(("password", "status"), [("secret", 0), ("", 1)])
def test_grafana_does_not_start_without_a_password(
    compose: dict[str, Any], password: str, status: int
) -> None:
    service = compose["services"]["grafana"]
    assert service["environment"]["GF_SECURITY_ADMIN_PASSWORD"] == "${GRAFANA_PASSWORD:-}"
    shell, option, script = service["entrypoint"]
    assert script.endswith("; exec /run.sh")
    started = subprocess.run(
        [shell, option, script.replace("$$", "$").replace("/run.sh", "true")],
        env={"GF_SECURITY_ADMIN_PASSWORD": password},
        capture_output=True,
        text=True,
    )
    assert started.returncode == status
    assert ("GRAFANA_PASSWORD" in started.stderr) is bool(status)


def test_profile_has_no_key_of_an_administrator(compose: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        assert "CINESTRATA_API_KEY" not in yaml.safe_dump(compose["services"][name])


def test_only_the_product_reaches_the_database_and_the_broker(compose: dict[str, Any]) -> None:
    def networks(name: str) -> set[str]:
        return {*compose["services"][name].get("networks", ["default"])}

    product = {"api", "worker-cpu", "worker-gpu", "migrate"}
    for store in ("postgres", "redis"):
        sharing = {name for name in compose["services"] if networks(name) & networks(store)}
        assert sharing == {*product, "postgres", "redis"}
    assert networks("prometheus") & networks("api")
