"""The built wheel contains the files that its commands use, and runs without the source folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from build_distributions import APPLICATION, contents_problems, read_names, shipped_files

ROOT = Path(__file__).resolve().parents[2]
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
