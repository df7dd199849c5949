"""Read version and notes of a release, and check that its commit can be released."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_VERSION_FILE = "clients/python/cinestrata_schemas/__init__.py"


class NotReleasable(Exception):
    """A commit or its distributions cannot be released; the message says why and what to do."""


def read_version(root: Path) -> str:
    """Read the version from a source folder."""
    text = (root / _VERSION_FILE).read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise NotReleasable(f"{_VERSION_FILE} states no __version__.")
    return found[1]


def release_notes(changelog: str, version: str) -> str:
    """Extract a version's changelog entry, without its heading.

    Raises:
        NotReleasable: There is no dated entry, or it is empty.
    """
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    found = re.search(heading + r"\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise NotReleasable(
            f"CHANGELOG.md has no notes for {version}. Add them below: ## [{version}] - YYYY-MM-DD"
        )
    return found[1].strip() + "\n"


def check_commit(root: Path, version: str) -> None:
    """Check that all changes are committed, and that no other commit has the version's tag.

    Raises:
        NotReleasable: A file is changed or untracked, or another commit has this version.
    """
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        shown = ", ".join(line[3:] for line in changed[:5]) + (", …" if len(changed) > 5 else "")
        raise NotReleasable(f"Files are not committed: {shown}. Commit or remove them.")
    if git(root, "tag", "--list", f"v{version}"):
        tagged, head = (git(root, "rev-parse", f"{name}^{{commit}}") for name in (f"v{version}", "HEAD"))
        if tagged != head:
            raise NotReleasable(
                f"{version} is already released: the tag v{version} is at {tagged[:12]}. Raise __version__."
            )


def git(root: Path, *arguments: str) -> str:
    """Run git in a folder, and return its output without the final line break."""
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleasable(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")
