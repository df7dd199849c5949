"""The source of a release: version, notes, and the reasons not to release a commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_VERSION_FILE = "clients/python/cinestrata_schemas/__init__.py"


class NotReleasable(Exception):
    """A commit or its distributions cannot be released; the message has the reason and the remedy."""


def read_version(root: Path) -> str:
    """Read the version of a source folder."""
    text = (root / _VERSION_FILE).read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise NotReleasable(f"{_VERSION_FILE} states no __version__.")
    return found[1]


def release_notes(changelog: str, version: str) -> str:
    """Extract the entry of a version, without its heading.

    Raises:
        NotReleasable: There is no entry with a date, or it is empty.
    """
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    found = re.search(heading + r"\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise NotReleasable(
            f"CHANGELOG.md has no notes of {version}. Add them below: ## [{version}] - YYYY-MM-DD"
        )
    return found[1].strip() + "\n"


def check_commit(root: Path, version: str) -> None:
    """Check that all changes are committed, and that no other commit has the tag of the version.

    Raises:
        NotReleasable: A file is changed or untracked, or the version is taken.
    """
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        shown = ", ".join(line[3:] for line in changed[:5]) + (", …" if len(changed) > 5 else "")
        raise NotReleasable(f"Files are not committed: {shown}. Commit or remove them.")
    if git(root, "tag", "--list", f"v{version}"):
        tagged, head = (git(root, "rev-parse", f"{name}^{{commit}}") for name in (f"v{version}", "HEAD"))
        if tagged != head:
            raise NotReleasable(
                f"{version} is released: the tag v{version} is at {tagged[:12]}. Raise __version__."
            )


def git(root: Path, *arguments: str) -> str:
    """Run git in a folder; returns its output without the last line break."""
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleasable(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")
