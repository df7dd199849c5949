"""Packages of the images: pinned, hashed, audited, and without development tools and spare libraries of CUDA."""

from __future__ import annotations

import json
import re
import shutil
import sysconfig
from importlib.metadata import distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEVELOPMENT = (
    "pytest",
    "hypothesis",
    "schemathesis",
    "selenium",
    "moto",
    "flask",
    "ruff",
    "mypy",
    "milvus-lite",
)


def _load(name: str, folder: str = "deploy/supply") -> ModuleType:
    spec = spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_packages_of_an_image_are_pinned_and_contain_no_development_tool() -> None:
    packages = _load("runtime_packages").runtime_packages(ROOT / "pyproject.toml", ["cpu", "s3", "gs"])
    lines = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert {
        name: pinned.get(name.replace("_", "-").replace(".", "-"), pinned.get(name)) for name in packages
    } == {name: version.lower() for name, version in packages.items()}
    assert len(packages) > 100
    assert not packages.keys() & set(DEVELOPMENT)
    assert not packages.keys() & {"scipy", "scikit-learn", "sentence-transformers"}


def test_hashes_of_wheels_cover_the_pins_of_images() -> None:
    packages = _load("runtime_packages").runtime_packages(
        ROOT / "pyproject.toml", ["cpu", "s3", "gs", "milvus"]
    )
    lines = (ROOT / "docker" / "wheels.sha256").read_text().splitlines()
    hashed = {line.partition(" ")[0].replace("_", "-").replace(".", "-") for line in lines}
    assert {
        f"{name}=={version}".replace("_", "-").replace(".", "-") for name, version in packages.items()
    } <= hashed
    assert all(re.fullmatch(r"\S+==\S+ [0-9a-f]{64}", line) for line in lines)
    assert any(line.startswith("faiss-gpu==") for line in lines)


@pytest.mark.parametrize(
    ("archive", "status"),
    [({"hashes": {"sha256": "a" * 64}}, 0), ({"hashes": {"sha256": "b" * 64}}, 1), ({}, 1)],
)
def test_build_ends_at_a_wheel_with_another_hash(
    archive: dict[str, Any], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, hashes = tmp_path / "installed.json", tmp_path / "wheels.sha256"
    metadata = {"name": "Tiny", "version": "1.0"}
    report.write_text(
        json.dumps({"install": [{"metadata": metadata, "download_info": {"archive_info": archive}}]})
    )
    hashes.write_text(f"tiny==1.0 {'a' * 64}\n")
    assert _load("check_wheels", "docker").main(report, hashes) == status
    assert ("Not in docker/wheels.sha256: tiny==1.0" in capsys.readouterr().err) == bool(status)


@pytest.mark.parametrize(
    ("packages", "status", "text"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "no known vulnerabilities in 1 packages"),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}],
            1,
            "a 1: CVE-1, fixed in 2",
        ),
        (
            [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}],
            2,
            "no answer for 1 of 2 packages (b)",
        ),
        ([], 2, "no answer for 0 of 0 packages"),
    ],
)
def test_audit_passes_only_if_every_package_was_compared(
    packages: list[dict[str, Any]], status: int, text: str
) -> None:
    found, shown = _load("audit_packages").summarize({"dependencies": packages})
    assert found == status
    assert text in shown


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return _load("remove_cuda", "docker")


@pytest.fixture(scope="module")
def site() -> Path:
    return Path(sysconfig.get_path("platlib"))


@pytest.mark.skipif(shutil.which("ldd") is None, reason="no ldd: the dynamic loader of another system")
def test_libraries_that_torch_is_linked_with_are_kept(script: ModuleType, site: Path) -> None:
    kept = script.linked_libraries(site)
    assert site.resolve() / "torch/lib/libtorch_cpu.so" in kept
    assert all(path.is_file() for path in kept)
    assert not [path for path in kept if "triton" in path.parts]


def test_only_packages_of_cuda_lose_files(script: ModuleType, site: Path) -> None:
    names = {package.name for package in distributions(path=[str(site)])}
    chosen = {name for name in names if script.CUDA_PACKAGE.fullmatch(name.lower())}
    assert {name.partition("-")[0] for name in chosen} <= {"nvidia", "cuda", "triton"}
    assert not chosen & {"torch", "torchvision", "numpy"}


def test_metadata_and_licenses_of_packages_are_kept(script: ModuleType, site: Path) -> None:
    package = next(package for package in distributions(path=[str(site)]) if package.name == "numpy")
    files = script.package_files(package)
    assert site.resolve() / "numpy/__init__.py" in files
    assert not [path for path in files if ".dist-info" in str(path) or path.name.startswith("LICENSE")]
