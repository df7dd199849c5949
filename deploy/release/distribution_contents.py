"""Define what a distribution contains: the packages its commands use, and nothing that only the repository needs."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

CLIENT = ("cinestrata_client", "cinestrata_schemas")
# Only the benchmarks of `cinestrata bench`; Make targets run the others from the repository.
APPLICATION = (
    "models",
    "media",
    "index",
    "service",
    "trainer",
    "api",
    "cli",
    "benchmarks/clips",
    "benchmarks/data",
    "benchmarks/learning",
    "benchmarks/protocols",
    "benchmarks/queries",
    "benchmarks/reporting",
    "benchmarks/rivals",
    "benchmarks/routing",
    *CLIENT,
)
_CLIENT_FOLDER = "clients/python/"
_FILES_OF_BENCHMARKS = re.compile(r"benchmarks/\w+\.py")
# Files in the root folder, and metadata that the build adds.
_OTHER_FILES = re.compile(
    r"(PKG-INFO|setup\.cfg|pyproject\.toml|MANIFEST\.in|README\.md|LICENSE|CHANGELOG\.md)|(.*/)?[\w.-]+\.(egg|dist)-info/.*"
)


def shipped_files(tracked: Iterable[str], packages: Iterable[str]) -> set[str]:
    """Select the tracked files that a distribution of these packages contains, named as in a wheel."""
    prefixes = tuple(f"{package}/" for package in packages)
    names = {path.removeprefix(_CLIENT_FOLDER) for path in tracked if not path.endswith(".md")}
    return {
        name
        for name in names
        if name.startswith(prefixes) or ("cli/" in prefixes and _FILES_OF_BENCHMARKS.fullmatch(name))
    }


def read_names(archive: Path) -> set[str]:
    """List the files in a wheel, or in an sdist without its top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        members = [member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()]
    return {name.removeprefix(_CLIENT_FOLDER) for name in members}


def contents_problems(names: set[str], shipped: set[str]) -> list[str]:
    """Describe missing files, and files that do not belong in a distribution, one sentence each."""
    surplus = {name for name in names - shipped if not _OTHER_FILES.fullmatch(name)}
    found = [f"It lacks {name}." for name in sorted(shipped - names)]
    return found + [f"It contains {name}." for name in sorted(surplus)]
