"""Write the SHA-256 hashes of all pinned packages' wheels: ``python docker/hash_wheels.py``.

``check_wheels.py`` compares an image's packages with ``wheels.sha256``. Run this after changing constraints.txt, with
pip 23.2 or newer; nothing is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from check_wheels import wheel_line

_ARCHITECTURES = ("x86_64", "aarch64")
_PYTHON = "3.11"  # as in docker/Dockerfile
_GLIBC = range(36, 4, -1)  # minor versions of glibc 2 that a wheel may need: Debian 12 has 2.36
_MISSING = re.compile(r"No matching distribution found for ([\w.-]+)")


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


def main() -> None:
    lines = Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    found = set().union(*(wheel_hashes(pins, architecture) for architecture in _ARCHITECTURES))
    Path("docker/wheels.sha256").write_text("".join(f"{line}\n" for line in sorted(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
