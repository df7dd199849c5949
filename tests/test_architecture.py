"""The house stays in order: names mean our packages, and imports go one way."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("models", "media", "index", "service", "trainer", "api", "cli", "benchmarks")
CLIENT_PACKAGES = ("cinestrata_client", "cinestrata_schemas")  # also a wheel of their own


@pytest.mark.parametrize("name", PACKAGES)
def test_package_name_means_our_package(name: str) -> None:
    # The command runs in another folder, so that it imports the installed packages and not those of the test folder.
    code = f"import {name}; print({name}.__file__)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()).resolve() == ROOT / name / "__init__.py"


def test_no_package_is_missing_from_the_rules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(settings["tool"]["importlinter"]["root_packages"]) == {*PACKAGES, *CLIENT_PACKAGES}
    patterns = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    shipped = {pattern.rstrip("*").partition(".")[0] for pattern in patterns}
    assert shipped == {*PACKAGES, *CLIENT_PACKAGES}
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert ours == set(PACKAGES)


def test_every_module_can_be_found_by_an_installed_copy() -> None:
    # A folder without __init__.py works here and is left out of a wheel.
    for package in PACKAGES:
        for module in (ROOT / package).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), (
                f"{module.parent.relative_to(ROOT)} has no __init__.py"
            )
    assert importlib.util.find_spec("cli.main") is not None


def test_committed_files_name_no_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    forbidden = (b"/work" + b"/", b"/root" + b"/", b"pypi" + b".org", b"files.python" + b"hosted")
    for name in filter(None, listed.stdout.split(b"\0")):
        path = ROOT / name.decode()
        if path.suffix == ".safetensors" or not path.is_file():
            continue
        content = path.read_bytes()
        assert not any(word in content for word in forbidden), (
            f"{path.name} names a machine's path or a registry"
        )
