"""``cinestrata snapshot`` and ``cinestrata restore``: catalog and index, copied together while everything runs.

A snapshot is a folder, or the same files in a ``.tar``::

    snapshot.json        name → size and SHA-256 of every other file
    catalog.sqlite3      of an SQLite catalog
    index/…              the manifest, and the folders that it names

The catalog is copied first. A task that is published in between is then in the manifest before the catalog calls it
ready, as after a worker's death, and the next worker finishes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from cli.console import console, fail, progress_bar
from cli.embedded.data_folder_lock import FolderBusy, data_folder_settings, locked
from index.files.durable_files import sync

if TYPE_CHECKING:
    from service.core.settings import Settings

__all__ = ["run_restore", "run_snapshot"]

_SCHEMA = 1
_CATALOG, _DESCRIPTION, _MANIFEST = "catalog.sqlite3", "snapshot.json", "index/manifest.json"
_CHUNK = 1 << 20
_Opener = Callable[[str], IO[bytes]]


@dataclass(frozen=True)
class _File:
    """One file of a snapshot: where it is now, its size in bytes and its SHA-256."""

    path: Path
    bytes: int
    sha256: str


def run_snapshot(target: Path, data: Path | None, index_only: bool) -> None:
    """Write a snapshot and read it back. On any error nothing is left of it."""
    from index.errors import ShardStoreError

    settings = data_folder_settings(data)
    target = target.expanduser().absolute()
    if target.exists():
        fail(f"{target} is there already.", "Name a new folder, or a new .tar file.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".snapshot-") as work:
            files = _collect(settings, Path(work), index_only)
            elsewhere = _elsewhere(files[_MANIFEST].path)
            total = sum(file.bytes for file in files.values())
            free = shutil.disk_usage(work).free
            if free < total:
                fail(
                    f"The snapshot takes {total:,} bytes, and {target.parent} has {free:,} free.",
                    "Make room.",
                )
            part = Path(work) / f"part{target.suffix}"
            (_write_tar if target.suffix == ".tar" else _write_folder)(part, files)
            with _reading(part) as open_file:
                for name, file in files.items():
                    with open_file(name) as source:
                        _require_same(name, file, _digest(source))
            os.rename(part, target)
            sync(target.parent)
    except (OSError, ShardStoreError, sqlite3.Error, tarfile.TarError, _Damaged) as error:
        fail(f"No snapshot was made: {error}", "Nothing was left behind. Mend what is named, then try again.")
    console.print(f"{target}: {len(files)} files, {total:,} bytes, read back and compared", soft_wrap=True)
    if elsewhere:
        console.print(
            f"The vectors of {elsewhere} tasks are in Milvus and not part of it; it holds their ids and digests. "
            "Copy them with milvus-backup now, and restore them there before this.",
            soft_wrap=True,
        )


def run_restore(source: Path, data: Path | None) -> None:
    """Put a snapshot into a data folder that has neither catalog nor index, after reading all of it."""
    from index.errors import ShardStoreError
    from index.integrity_audit import audit
    from service.catalog.database import sqlite_path
    from service.storage.vector_store_selection import library_store

    settings = data_folder_settings(data)
    try:
        with (
            locked(settings.run_dir, settings.data_dir),
            TemporaryDirectory(dir=settings.data_dir, prefix=".restore-") as work,
            _reading(source) as open_file,
        ):
            files = _described(open_file)
            catalog = sqlite_path(settings.database_url)
            # A write-ahead log that was left without its catalog would be played into the restored one.
            places = (settings.index_dir, *([catalog, Path(f"{catalog}-wal")] if catalog else []))
            there = [path for path in places if path.exists()]
            if there:
                fail(f"{there[0]} is there already.", "Restore into a new folder, or move it away first.")
            if _CATALOG in files and catalog is None:
                fail(
                    "The snapshot holds an SQLite catalog, and CINESTRATA_DATABASE_URL names another database.",
                    "Restore without that variable.",
                )
            for name, file in files.items():
                with open_file(name) as reading:
                    _require_same(name, file, _digest(reading, Path(work) / name))
            configured = settings.model_copy(update={"data_dir": Path(work)})
            wrong = audit(library_store(configured)).problems
            if wrong:
                raise _Damaged("; ".join(wrong))
            if catalog and _CATALOG in files:
                _require_whole_catalog(Path(work) / _CATALOG)
                catalog.parent.mkdir(parents=True, exist_ok=True)
                # It may belong on another file system, so it is copied there before anything is put in place.
                with (
                    TemporaryDirectory(dir=catalog.parent, prefix=".restore-") as beside,
                    (Path(work) / _CATALOG).open("rb") as whole,
                ):
                    _digest(whole, Path(beside) / _CATALOG)
                    os.rename(Path(work) / "index", settings.index_dir)
                    os.rename(Path(beside) / _CATALOG, catalog)
                    sync(catalog.parent)
            else:
                os.rename(Path(work) / "index", settings.index_dir)
            sync(settings.data_dir)
    except FolderBusy as error:
        fail(str(error), "Stop it first.")
    except (OSError, ShardStoreError, sqlite3.Error, tarfile.TarError, KeyError, _Damaged) as error:
        fail(f"Nothing was restored from {source}: {error}", "Take another snapshot, or another data folder.")
    console.print(f"{settings.data_dir}: {len(files)} files, every checksum right", soft_wrap=True)
    if _CATALOG not in files:
        console.print("The catalog is not part of this snapshot: restore its dump with pg_restore.")


class _Damaged(Exception):
    """A file is not what it should be; the message names it."""


def _collect(settings: Settings, work: Path, index_only: bool) -> dict[str, _File]:
    """The files of a snapshot by name; what does not stand still is copied to ``work`` first."""
    from index.manifest_files import list_manifest_files
    from index.shard_store import ShardStore
    from service.catalog.database import sqlite_path

    files: dict[str, _File] = {}
    catalog = sqlite_path(settings.database_url)
    if catalog is None and not index_only:
        fail(
            "The catalog is in PostgreSQL, which has a tool of its own for this.",
            "Dump it first, then take the index:\n"
            "  pg_dump --format=custom --file=catalog.dump --dbname=<your database>\n"
            "  cinestrata snapshot --index-only <target>",
        )
    if catalog is not None and catalog.exists() and not index_only:
        copy = work / _CATALOG
        with (
            closing(sqlite3.connect(catalog, timeout=settings.busy_seconds)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        _require_whole_catalog(copy)
        files[_CATALOG] = _measured(copy)
    store = ShardStore(settings.index_dir)
    manifest = store.manifest()
    if manifest.release is None:
        fail("Nothing has been learned yet: there is nothing to copy.")
    written = work / "manifest.json"
    written.write_text(manifest.dumps(), encoding="utf-8")
    files[_MANIFEST] = _measured(written)
    for name, (path, digest) in list_manifest_files(store, manifest).items():
        files[f"index/{name}"] = _File(path, path.stat().st_size, digest)
    description = work / _DESCRIPTION
    described = {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in files.items()}
    about = {"schema": _SCHEMA, "created": datetime.now(UTC).isoformat(timespec="seconds")}
    generation = {"generation": manifest.generation, "release": manifest.release}
    description.write_text(
        json.dumps({**about, **generation, "files": described}, indent=1), encoding="utf-8"
    )
    return {_DESCRIPTION: _measured(description), **files}


def _elsewhere(manifest: Path) -> int:
    """Tasks whose vectors are in another store."""
    from index.files.manifest_format import Manifest

    shards = Manifest.loads(manifest.read_text(encoding="utf-8")).shards
    return sum(bool(shard.place) for shard in shards.values())


def _write_folder(part: Path, files: Mapping[str, _File]) -> None:
    for name, file in _told(files):
        with file.path.open("rb") as source:
            _digest(source, part / name)
    for folder in [part, *(path for path in part.rglob("*") if path.is_dir())]:
        sync(folder)


def _write_tar(part: Path, files: Mapping[str, _File]) -> None:
    with tarfile.open(part, "w") as archive:
        for name, file in _told(files):
            member = tarfile.TarInfo(name)
            member.size = file.bytes
            with file.path.open("rb") as source:
                archive.addfile(member, source)
    sync(part)


@contextmanager
def _reading(source: Path) -> Iterator[_Opener]:
    """Opens the files of a snapshot by name."""
    if source.is_dir():
        yield lambda name: (source / name).open("rb")
        return
    with tarfile.open(source, "r:") as archive:

        def member(name: str) -> IO[bytes]:
            found = archive.extractfile(name)
            if found is None:
                raise _Damaged(f"{name} is not a file")
            return found

        yield member


def _described(open_file: _Opener) -> dict[str, _File]:
    """What ``snapshot.json`` says; a name that leads out of the folder is refused."""
    try:
        with open_file(_DESCRIPTION) as file:
            body: dict[str, Any] = json.load(file)
        if body["schema"] != _SCHEMA:
            raise _Damaged(
                f"it has schema {body['schema']}, this version reads {_SCHEMA}; use the one that wrote it"
            )
        files = {
            name: _File(Path(name), said["bytes"], said["sha256"]) for name, said in body["files"].items()
        }
    except (KeyError, FileNotFoundError) as error:
        raise _Damaged(f"it is no snapshot ({error})") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _Damaged(f"{_DESCRIPTION} cannot be read ({error})") from error
    for name in files:
        path = PurePosixPath(name)
        inside = name == _CATALOG or (path.parts[:1] == ("index",) and len(path.parts) > 1)
        if ".." in path.parts or "\0" in name or not inside:
            raise _Damaged(f"{_DESCRIPTION} names a file outside the data folder ({name!r})")
    if _MANIFEST not in files:
        raise _Damaged(f"it lacks {_MANIFEST}")
    return files


def _digest(source: IO[bytes], target: Path | None = None) -> tuple[int, str]:
    """Size and SHA-256 of a file, which is written to ``target`` durably on the way."""
    digest, size = hashlib.sha256(), 0
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") if target else open(os.devnull, "wb") as copy:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            copy.write(chunk)
        if target is not None:
            copy.flush()
            os.fsync(copy.fileno())
    return size, digest.hexdigest()


def _measured(path: Path) -> _File:
    with path.open("rb") as file:
        return _File(path, *_digest(file))


def _require_same(name: str, file: _File, found: tuple[int, str]) -> None:
    if found != (file.bytes, file.sha256):
        raise _Damaged(f"{name} is not what it was when it was published")


def _require_whole_catalog(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        said = connection.execute("PRAGMA integrity_check").fetchone()[0]
    if said != "ok":
        raise _Damaged(f"the catalog is damaged ({said})")


def _told(files: Mapping[str, _File]) -> Iterator[tuple[str, _File]]:
    """The files, with a bar of the bytes that are done."""
    with progress_bar("bytes") as bar:
        task = bar.add_task("Copying", total=sum(file.bytes for file in files.values()))
        for name, file in files.items():
            yield name, file
            bar.advance(task, file.bytes)
