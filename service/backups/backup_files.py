"""Read and write a backup's files, description and checksums, as a folder or a tar archive.

A backup consists of::

    snapshot.json        name → size and SHA-256 of every other file
    catalog.sqlite3      copy of an SQLite catalog
    index/…              the manifest and the folders that it names
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from index.files.durable_files import sync

CATALOG, DESCRIPTION, MANIFEST = "catalog.sqlite3", "snapshot.json", "index/manifest.json"
_SCHEMA = 1
_CHUNK_BYTES = 1 << 20
# Enough for a million files. In an archive, a sparse file of a terabyte takes no space.
_MAX_DESCRIPTION_BYTES = 256 << 20
_OWNER_MODE = 0o600

FileOpener = Callable[[str], IO[bytes]]
ProgressReport = Callable[[int, int], object]  # copied bytes, total bytes


class BackupDamaged(Exception):
    """A file in a backup is missing, changed or unreadable. The message names it."""


@dataclass(frozen=True)
class BackupFile:
    """A file in a backup: the path to read it from, its size, and its SHA-256 in hexadecimal."""

    path: Path
    bytes: int
    sha256: str

    @classmethod
    def from_path(cls, path: Path) -> BackupFile:
        """Read a file to determine its size and checksum."""
        with path.open("rb") as file:
            return cls(path, *_copy(file))


def write_description(
    path: Path, files: Mapping[str, BackupFile], *, generation: int, release: str | None
) -> BackupFile:
    """Write ``snapshot.json``, the description of a backup: its files, and the manifest's generation and release."""
    description = {
        "schema": _SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "generation": generation,
        "release": release,
        "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in files.items()},
    }
    path.write_text(json.dumps(description, indent=1), encoding="utf-8")
    return BackupFile.from_path(path)


def read_description(open_file: FileOpener) -> dict[str, BackupFile]:
    """Read which files a backup lists; raise BackupDamaged, also for one outside the data folder."""
    try:
        with open_file(DESCRIPTION) as file:
            text = file.read(_MAX_DESCRIPTION_BYTES + 1)
        if len(text) > _MAX_DESCRIPTION_BYTES:
            raise BackupDamaged(f"{DESCRIPTION} is larger than {_MAX_DESCRIPTION_BYTES} bytes")
        body: dict[str, Any] = json.loads(text)
        if body["schema"] != _SCHEMA:
            raise BackupDamaged(
                f"it has schema {body['schema']}, but this version reads schema {_SCHEMA}; use the version that "
                "wrote it"
            )
        files = {
            name: BackupFile(Path(name), _byte_count(entry), entry["sha256"])
            for name, entry in body["files"].items()
        }
    except (KeyError, FileNotFoundError) as error:
        raise BackupDamaged(f"it is not a backup ({error})") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BackupDamaged(f"{DESCRIPTION} is not readable ({error})") from error
    for name in files:
        path = PurePosixPath(name)
        is_expected = name == CATALOG or (path.parts[:1] == ("index",) and len(path.parts) > 1)
        if ".." in path.parts or "\0" in name or not is_expected:
            raise BackupDamaged(f"{DESCRIPTION} names a file outside the data folder ({name!r})")
    if MANIFEST not in files:
        raise BackupDamaged(f"{MANIFEST} is missing")
    return files


def _byte_count(entry: Mapping[str, Any]) -> int:
    """Parse a file size, which limits the bytes to copy."""
    size = entry["bytes"]
    if type(size) is not int or not 0 <= size < 2**63:
        raise ValueError(f"{size!r} is not a number of bytes")
    return size


def write_backup(
    target: Path, files: Mapping[str, BackupFile], progress: ProgressReport | None = None
) -> None:
    """Write the files durably: to a tar archive if the target ends in ``.tar``, to a folder otherwise.

    Only the process's owner can read the result: a catalog contains webhook secrets, password hashes and captions.
    """
    (_write_tar if target.suffix == ".tar" else _write_folder)(target, _with_progress(files, progress))


def _write_folder(target: Path, files: Iterable[tuple[str, BackupFile]]) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    for name, file in files:
        with file.path.open("rb") as source:
            _copy(source, target / name)
    for folder in [target, *(path for path in target.rglob("*") if path.is_dir())]:
        sync(folder)


def _write_tar(target: Path, files: Iterable[tuple[str, BackupFile]]) -> None:
    with (
        open(target, "xb", opener=partial(os.open, mode=_OWNER_MODE)) as target_file,
        tarfile.open(fileobj=target_file, mode="w") as archive,
    ):
        for name, file in files:
            member = tarfile.TarInfo(name)
            member.size, member.mode = file.bytes, _OWNER_MODE
            with file.path.open("rb") as source:
                archive.addfile(member, source)
    sync(target)


def _with_progress(
    files: Mapping[str, BackupFile], progress: ProgressReport | None
) -> Iterator[tuple[str, BackupFile]]:
    total, copied = sum(file.bytes for file in files.values()), 0
    for name, file in files.items():
        yield name, file
        copied += file.bytes
        if progress is not None:
            progress(copied, total)


@contextmanager
def open_backup(source: Path) -> Iterator[FileOpener]:
    """Yield a function that opens a backup's files by name."""
    if source.is_dir():

        def open_regular(name: str) -> IO[bytes]:
            path = source / name
            if path.exists() and not path.is_file():  # a pipe would block, and a device has no end
                raise BackupDamaged(f"{name} is not a file")
            return path.open("rb")

        yield open_regular
        return
    with tarfile.open(source, "r:") as archive:

        def open_member(name: str) -> IO[bytes]:
            member = archive.getmember(name)
            file = archive.extractfile(member) if member.isreg() else None  # a link may lead to itself
            if file is None:
                raise BackupDamaged(f"{name} is not a file")
            return file

        yield open_member


def copy_and_verify(open_file: FileOpener, name: str, file: BackupFile, target: Path | None = None) -> None:
    """Read a file, compare its checksum (raise BackupDamaged), and write it durably to a target, if given."""
    with open_file(name) as source:
        if _copy(source, target, file.bytes) != (file.bytes, file.sha256):
            raise BackupDamaged(f"{name} differs from the published file")


def require_intact_catalog(path: Path) -> None:
    """Check the pages of an SQLite catalog; raise BackupDamaged."""
    with closing(sqlite3.connect(path)) as connection:
        result = connection.execute("PRAGMA integrity_check").fetchone()[0]
    if result != "ok":
        raise BackupDamaged(f"the catalog is damaged ({result})")


def _copy(source: IO[bytes], target: Path | None = None, expected: int | None = None) -> tuple[int, str]:
    """Copy a file durably, but not beyond its expected size, to ``target``, if given; return its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") if target else open(os.devnull, "wb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            copy.write(chunk)
            if expected is not None and size > expected:
                break
        if target is not None:
            copy.flush()
            os.fsync(copy.fileno())
    return size, digest.hexdigest()
