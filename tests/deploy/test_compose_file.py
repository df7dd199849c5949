"""docker-compose.yml, .env.example and the images that they use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from cli.main import app

PRODUCT = ("api", "worker-cpu", "worker-gpu")
REQUIRED = {"POSTGRES_PASSWORD", "CINESTRATA_API_KEY", "CINESTRATA_MEDIA"}


def test_services_start_after_the_migration(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {*PRODUCT, "migrate", "redis", "postgres", "prometheus", "grafana"}
    assert {name for name, service in services.items() if service.get("profiles") == ["observability"]} == {
        "prometheus",
        "grafana",
    }
    for name in PRODUCT:
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
        assert services[name]["build"]["target"] == name
        assert services[name]["stop_grace_period"]


def test_services_have_no_more_rights_than_they_need(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert service["restart"] in ("unless-stopped", "no")
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}
        assert service["pids_limit"]
        assert name == "api" or "CINESTRATA_API_KEY" not in service.get("environment", {})
    for name in (*PRODUCT, "migrate"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    # An operator who opens the API to a network does not open Grafana.
    assert {
        name: service["ports"][0].rpartition("}:$")[0]
        for name, service in services.items()
        if "ports" in service
    } == {"api": "${CINESTRATA_BIND:-127.0.0.1", "grafana": "${GRAFANA_BIND:-127.0.0.1"}


def test_passwords_are_not_part_of_urls(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            assert "PASSWORD" not in (value or "") or name in (
                "PGPASSWORD",
                "POSTGRES_PASSWORD",
                "GF_SECURITY_ADMIN_PASSWORD",
            )
            assert "API_KEY" not in (value or "") or name == "CINESTRATA_API_KEY"
    environment = services["api"]["environment"]
    assert make_url(environment["CINESTRATA_DATABASE_URL"]).password is None
    assert environment["PGPASSWORD"] == services["postgres"]["environment"]["POSTGRES_PASSWORD"]


def test_environment_example_names_every_variable_and_no_secret_has_a_default(root: Path) -> None:
    text = (root / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+):\?", text)) == REQUIRED
    example = dict(re.findall(r"^(\w+)=(.*)$", (root / ".env.example").read_text(), re.MULTILINE))
    assert {name for name, value in example.items() if not value} == REQUIRED | {
        "CINESTRATA_SOURCES",
        "GRAFANA_PASSWORD",
    }
    assert set(re.findall(r"\$\{(\w+)", text)) == set(example)


@pytest.mark.parametrize("name", ["docker/Dockerfile", "docker-compose.yml"])
def test_commands_of_images_exist(root: Path, name: str) -> None:
    text = (root / name).read_text()
    commands = [re.findall(r"[\w-]+", found) for found in re.findall(r"\[\W*cinestrata\W+([^\]]*)\]", text)]
    assert commands
    for command in commands:
        help_page = CliRunner().invoke(app, [command[0], "--help"])
        assert help_page.exit_code == 0
        assert all(option in help_page.output for option in command if option.startswith("--"))


def test_every_image_has_a_health_check_and_an_unprivileged_user(root: Path) -> None:
    stages = re.split(r"^FROM ", (root / "docker" / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    recipes: dict[str, str] = {}
    for stage in stages:
        base, name = re.match(r"(\S+) AS (\S+)", stage).groups()  # type: ignore[union-attr]
        base = base.replace("${ACCELERATOR}", "cpu")
        recipes[name] = recipes.get(base, "") + stage
    for name in PRODUCT:
        assert "USER cinestrata" in recipes[name]
        for label in ("version", "revision"):
            assert f"org.opencontainers.image.{label}=${{{label.upper()}}}" in recipes[name]
        assert "HEALTHCHECK" in recipes[name]
