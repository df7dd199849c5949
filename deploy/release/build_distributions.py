"""Build wheels and sdists of the application and the client from the current commit, and check their contents.

``make release`` runs this with the build tools' Python. Sources come from the commit, not from the working tree, and
files have the commit's time, so that two builds of a commit are equal.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

_VERSION_FILE = "clients/python/cinestrata_schemas/__init__.py"


class NotReleasable(Exception):
    """A commit or its distributions cannot be released; the message says why and what to do."""


def read_version(root: Path) -> str:
    """Read the version from a source folder."""
    text = (root / _VERSION_FILE).read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise NotReleasable(f"{_VERSION_FILE} has no __version__. Add it.")
    return match[1]


def release_notes(changelog: str, version: str) -> str:
    """Extract a version's changelog entry, without its heading.

    Raises:
        NotReleasable: There is no dated entry, or it is empty.
    """
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    notes = re.search(heading + r"\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if notes is None or not notes[1].strip():
        raise NotReleasable(f"CHANGELOG.md has no notes for {version}. Add: ## [{version}] - YYYY-MM-DD")
    return notes[1].strip() + "\n"


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


CLIENT = ("cinestrata_client", "cinestrata_schemas")
# Only the benchmarks of `cinestrata bench`; Make targets run the others from the repository.
_BENCHMARKS = ("clips", "data", "learning", "protocols", "queries", "reporting", "rivals", "routing")
APPLICATION = (
    *("models", "media", "index", "service", "trainer", "api", "cli"),
    *(f"benchmarks/{folder}" for folder in _BENCHMARKS),
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
    problems = [f"It lacks {name}." for name in sorted(shipped - names)]
    return problems + [f"It contains {name}." for name in sorted(surplus)]


def build_distributions(root: Path, out: Path) -> list[Path]:
    """Build the distributions of a clean commit, write the release notes, and return all files.

    Raises:
        NotReleasable: The commit cannot be released, or a distribution has wrong contents.
    """
    version = read_version(root)
    check_commit(root, version)
    notes = release_notes((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if out.exists() and any(out.iterdir()):
        raise NotReleasable(f"{out} is not empty. Remove it, or name another folder: make release OUT=FOLDER")
    time = int(git(root, "log", "-1", "--format=%ct"))
    tracked = git(root, "ls-files").splitlines()
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        _export(root, source)
        shutil.copy(source / "LICENSE", source / "clients/python")  # the client's wheel includes it too
        for folder, packages in ((source, APPLICATION), (source / "clients/python", CLIENT)):
            built = source / "built"
            _build(folder, built, time)
            shipped = shipped_files(tracked, packages)
            for archive in sorted(built.iterdir()):
                problems = contents_problems(read_names(archive), shipped)
                if problems:
                    raise NotReleasable(f"{archive.name}: {' '.join(problems[:5])}")
                out.mkdir(parents=True, exist_ok=True)
                shutil.move(archive, out)
    (out / "RELEASE_NOTES.md").write_text(notes, encoding="utf-8")
    return sorted(out.iterdir())


def _export(root: Path, target: Path) -> None:
    """Write the commit's files to a folder."""
    archive = target / "source.tar"
    git(root, "archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as content:
        content.extractall(target, filter="data")
    archive.unlink()


def _build(folder: Path, out: Path, time: int) -> None:
    """Build an sdist from a source folder, and a wheel from the sdist."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, folder]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleasable(f"The build of {folder.name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    for sdist in out.glob("*.tar.gz"):
        set_times(sdist, time)


def set_times(sdist: Path, time: int) -> None:
    """Rewrite an sdist sorted, without owners and with one time, which build tools do only for wheels."""
    temporary = sdist.with_suffix(".part")
    with (
        tarfile.open(sdist) as content,
        temporary.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=time) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in sorted(content.getmembers(), key=lambda entry: entry.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            written.addfile(member, content.extractfile(member) if member.isfile() else None)
    temporary.replace(sdist)


def main(out: Path) -> int:
    """Build into ``out`` and print the files; the exit status is 1 if the commit cannot be released."""
    try:
        files = build_distributions(Path.cwd(), out)
    except NotReleasable as error:
        sys.stderr.write(f"Not released. {error}\n")
        return 1
    sys.stdout.write("".join(f"{file}\n" for file in files))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
