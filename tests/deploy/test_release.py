"""A release has a clean commit, notes and one version; its packages are pinned, hashed and audited."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib.metadata import distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from build_distributions import (
    APPLICATION,
    CLIENT,
    NotReleasable,
    build_distributions,
    check_commit,
    contents_problems,
    git,
    read_names,
    read_version,
    release_notes,
    set_times,
    shipped_files,
)
from typer.testing import CliRunner

import cinestrata_client
from api.agents.library_tools import create_agent_server
from api.app import create_app
from cinestrata_schemas import __version__
from cli.main import app

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = """# Changelog

## [1.1.0] - 2027-01-31

## [1.0.1] - soon

- Undated.

## [1.0.0] - 2026-11-27

The first release.

- Searches.

## [0.9.0] - 2026-10-01

- Older.
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of a version with notes."""
    folder = tmp_path / "repository"
    schemas = folder / "clients/python/cinestrata_schemas"
    schemas.mkdir(parents=True)
    (schemas / "__init__.py").write_text('__version__ = "1.0.0"  # everywhere\n')
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    git(folder, "init", "-q")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-qm", "Change a file")


def test_notes_of_a_version_end_at_the_previous_one() -> None:
    assert release_notes(CHANGELOG, "1.0.0") == "The first release.\n\n- Searches.\n"
    assert release_notes((ROOT / "CHANGELOG.md").read_text(), read_version(ROOT))


@pytest.mark.parametrize("version", ["1.1.0", "1.0.1", "1.0", "2.0.0"])
def test_version_without_notes_is_refused(version: str) -> None:
    with pytest.raises(NotReleasable, match=f"no notes for {version}"):
        release_notes(CHANGELOG, version)


@pytest.mark.parametrize("file", ["CHANGELOG.md", "new.py"])
def test_files_that_are_not_committed_are_refused_by_name(repository: Path, file: str) -> None:
    (repository / file).write_text("changed")
    with pytest.raises(NotReleasable, match=rf"not committed: {file}\. Commit or remove"):
        build_distributions(repository, repository.parent / "out")
    assert not (repository.parent / "out").exists()


def test_released_version_is_refused_for_another_commit(repository: Path) -> None:
    git(repository, "tag", "v1.0.0")
    (repository / "more").touch()
    commit(repository)
    with pytest.raises(NotReleasable, match=r"1\.0\.0 is already released.* Raise __version__"):
        check_commit(repository, "1.0.0")


@pytest.mark.parametrize("packages", [APPLICATION, CLIENT])
def test_shipped_files_import_shipped_files_alone(packages: tuple[str, ...]) -> None:
    shipped = shipped_files(tracked_files(), packages)
    folders = {name.partition("/")[0] for name in shipped}
    every = {name.removeprefix("clients/python/") for name in tracked_files()}
    for file in sorted(name for name in shipped if name.endswith(".py")):
        source = ROOT / file if (ROOT / file).exists() else ROOT / "clients/python" / file
        for module in imported_modules(source):
            paths = {f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"}
            if module.partition(".")[0] in folders or packages is CLIENT:
                assert paths & shipped or not paths & every, f"{file} imports {module}"


def tracked_files() -> list[str]:
    command = ["git", "-C", ROOT, "ls-files"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("This folder is not a git repository.")
    return listed.stdout.splitlines()


def imported_modules(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_sdists_of_a_commit_are_equal_and_name_no_user(tmp_path: Path) -> None:
    written = []
    for number, order in enumerate((1, -1)):
        sdist = tmp_path / f"{number}.tar.gz"
        with tarfile.open(sdist, "w:gz") as archive:
            for name in ("c-1/a.py", "c-1/clients/python/b.py")[::order]:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uid, member.uname = (
                    4,
                    1e9 + number,
                    1000 + number,
                    "someone",
                )
                archive.addfile(member, io.BytesIO(b"text"))
        set_times(sdist, 1_700_000_000)
        written.append(sdist.read_bytes())
        assert read_names(sdist) == {"a.py", "b.py"}
        with tarfile.open(sdist) as archive:
            assert {(m.uid, m.uname, m.mtime) for m in archive.getmembers()} == {(0, "", 1_700_000_000)}
    assert written[0] == written[1]


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


FOLDERS = ("models", "media", "index", "service", "trainer", "api", "cli", "benchmarks", "clients")


@pytest.mark.slow
def test_wheel_is_complete_and_runs(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source, site = tmp_path / "source", tmp_path / "site"
    # The build writes to its source folder.
    for name in FOLDERS:
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    files = [str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source], check=True
    )
    (wheel,) = tmp_path.glob("cinestrata-*.whl")
    assert contents_problems(read_names(wheel), shipped_files(files, APPLICATION)) == []

    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "CINESTRATA_DATA_DIR": str(tmp_path / "data")}
    script = (
        "import api.app, cli, cinestrata_client; print(cli.__file__, cinestrata_client.__file__, sep='\\n')"
    )
    imported = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(line.startswith(str(site)) for line in imported.stdout.splitlines())
    doctor = subprocess.run(
        [sys.executable, site / "bin" / "cinestrata", "doctor"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr


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
