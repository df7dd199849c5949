"""The version stands in one place, and what repeats it agrees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cinestrata_client
from api.agents.library_tools import create_agent_server
from api.app import create_app
from cinestrata_schemas import __version__
from cli.main import app


def test_interfaces_show_the_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert create_app().openapi()["info"]["version"] == __version__
    assert CliRunner().invoke(app, ["--version"]).output == f"cinestrata {__version__}\n"
    assert cinestrata_client.__version__ == __version__
    assert create_agent_server(lambda _: pytest.fail("no request")).version == __version__


def test_images_have_the_version(root: Path, manifests: list[dict[str, Any]]) -> None:
    recipe = (root / "docker/Dockerfile").read_text()
    assert re.findall(r"^ARG VERSION=(.+)$", recipe, re.MULTILINE) == [__version__]
    pods = [
        document["spec"]["template"]["spec"] for document in manifests if document["kind"] == "Deployment"
    ]
    images = [
        container["image"]
        for pod in pods
        for container in (*pod.get("initContainers", ()), *pod["containers"])
    ]
    assert len(images) == 4
    assert {image.partition(":")[2] for image in images} == {__version__}


def test_changelog_begins_with_the_version(root: Path) -> None:
    versions = re.findall(
        r"^## \[(.+?)\] - \d{4}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert versions[0] == __version__
