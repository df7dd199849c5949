"""Compare or write the SHA-256 hashes of the wheels that images install, in wheels.sha256; needs no package.

``python check_wheels.py REPORT`` compares the wheels in a report of ``pip install --report`` with them; the build fails
if one differs. pip compares each wheel with the hash that the index states; this comparison does not rely on the index.
``python docker/check_wheels.py --write`` writes the hashes of all pinned packages, after a change of constraints.txt,
with pip 23.2 or newer; nothing is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ARCHITECTURES = ("x86_64", "aarch64")
_PYTHON = "3.11"  # as in docker/Dockerfile
_GLIBC = range(36, 4, -1)  # minor versions of glibc 2 that a wheel may need: Debian 12 has 2.36
_MISSING = re.compile(r"No matching distribution found for ([\w.-]+)")


def wheel_line(installed: dict[str, Any]) -> str:
    """Format an entry of a report as ``name==version sha256``."""
    digest = installed["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
    return f"{installed['metadata']['name'].lower()}=={installed['metadata']['version']} {digest}"


def main(report: Path, hashes: Path) -> int:
    """Print the wheels in the report whose hash is unknown; the exit status is 1 if there are any."""
    recorded = set(hashes.read_text(encoding="utf-8").splitlines())
    unknown = [
        line
        for line in map(wheel_line, json.loads(report.read_text(encoding="utf-8"))["install"])
        if line not in recorded
    ]
    if unknown:
        sys.stderr.write("".join(f"Not in docker/wheels.sha256: {line}\n" for line in unknown))
        sys.stderr.write("After changing packages or Python, run: python docker/check_wheels.py --write\n")
    return 1 if unknown else 0


def wheel_hashes(pins: list[str], architecture: str) -> set[str]:
    """Hash the wheels that pip selects for Linux on this architecture, as lines ``name==version sha256``.

    Packages without a wheel for it are left out.

    Raises:
        RuntimeError: pip fails for another reason.
    """
    tags = [f"manylinux_2_{minor}_{architecture}" for minor in _GLIBC]
    tags += [f"manylinux{year}_{architecture}" for year in ("2014", "2010", "1")]
    options = (
        "--quiet --dry-run --ignore-installed --no-deps --only-binary=:all: --implementation=cp --report=-"
    )
    command = [sys.executable, "-m", "pip", "install", *options.split(), f"--python-version={_PYTHON}"]
    command += [f"--platform={tag}" for tag in tags]
    pins = list(pins)
    while True:
        with tempfile.TemporaryDirectory() as target:
            done = subprocess.run(
                [*command, f"--target={target}", *pins], capture_output=True, text=True, check=False
            )
        missing = _MISSING.search(done.stderr)
        if done.returncode == 0:
            return set(map(wheel_line, json.loads(done.stdout)["install"]))
        if missing is None:
            raise RuntimeError(f"pip failed:\n{done.stderr}")
        pins = [pin for pin in pins if pin.partition("==")[0] != missing[1]]


def write_hashes() -> None:
    """Write the hashes of all pinned packages."""
    lines = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    hashes = set().union(*(wheel_hashes(pins, architecture) for architecture in _ARCHITECTURES))
    Path("docker/wheels.sha256").write_text("".join(f"{line}\n" for line in sorted(hashes)), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write_hashes()
    else:
        sys.exit(main(Path(sys.argv[1]), Path("wheels.sha256")))
