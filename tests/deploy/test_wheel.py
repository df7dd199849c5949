"""The built wheel contains all files of the packages, and runs without the source folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("models", "media", "index", "service", "trainer", "api", "cli", "benchmarks")
CLIENT_PACKAGES = [Path("clients/python", name) for name in ("cinestrata_client", "cinestrata_schemas")]


@pytest.mark.slow
def test_wheel_is_complete_and_runs(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source, site = tmp_path / "source", tmp_path / "site"
    # The build writes to its source folder.
    for name in (*PACKAGES, *CLIENT_PACKAGES):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("cinestrata-*.whl")
    files = {
        str(path.relative_to((source / name).parent))
        for name in (*PACKAGES, *CLIENT_PACKAGES)
        for path in (source / name).rglob("*.*")
        if path.is_file()
    }
    packed = set(zipfile.ZipFile(wheel).namelist())
    folders = {name.partition("/")[0] for name in packed if ".dist-info/" not in name}
    assert folders == {*PACKAGES, *(path.name for path in CLIENT_PACKAGES)}
    assert sorted(name for name in files - packed if not name.endswith(".md")) == []

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
