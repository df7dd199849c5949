"""A release is made from a clean commit with notes, and contains what its commands use."""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_distributions import (
    APPLICATION,
    CLIENT,
    NotReleasable,
    build_distributions,
    check_commit,
    git,
    read_names,
    read_version,
    release_notes,
    set_times,
    shipped_files,
)

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
