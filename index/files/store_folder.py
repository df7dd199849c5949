"""A store's folder: paths, staging, content-addressed folders, the manifest, and comparison with checksums."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from cachetools import LRUCache, cached

from index.errors import ManifestError
from index.files.durable_files import exclusive_lock, find_damage, hash_file, hash_files, replace_text, sync
from index.files.manifest_format import Manifest, content_id, load_checked

WORDS = "words.json"


class SealedFolder(NamedTuple):
    """An immutable folder: its content ID, the total size of its files, and name → SHA-256."""

    id: str
    bytes: int
    files: dict[str, str]


class StoreFolder:
    """Paths and file operations of a store.

    Folders of shards, releases and tombstones are immutable; only ``manifest.json`` is ever replaced. Nothing is
    created before the first write, so readers need no write permission.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest_path = root / "manifest.json"
        self.shards_path = root / "shards"
        self.releases_path = root / "releases"
        self.tombstones_path = root / "tombstones"
        self.words_path = root / "words"
        self._staging_path = root / "tmp"

    def shard_folder(self, identifier: str) -> Path:
        """Locate a segment."""
        return self.shards_path / identifier

    def release_folder(self, identifier: str) -> Path:
        """Locate a release."""
        return self.releases_path / identifier

    def tombstone_folder(self, identifier: str) -> Path:
        """Locate a task's tombstones."""
        return self.tombstones_path / identifier

    def word_folders(self) -> set[str]:
        """List the IDs of the folders that ``words.json`` names; none if it is missing or damaged."""
        with suppress(OSError, ValueError, KeyError):
            return set(load_checked((self.root / WORDS).read_text(encoding="utf-8"))["folders"])
        return set()

    def folders(self) -> list[Path]:
        """List all folders on disk: staged ones, and sealed ones, whether the manifest names them or not."""
        sealed = (self.shards_path, self.releases_path, self.tombstones_path, self.words_path)
        parents = (self._staging_path, *sealed)
        return [folder for parent in parents if parent.exists() for folder in parent.iterdir()]

    def write_lock(self, timeout: float | None = None) -> AbstractContextManager[None]:
        """Lock out other writers, across threads and processes; see :func:`exclusive_lock`."""
        return exclusive_lock(self.root / "write.lock", timeout)

    def stage(self) -> Path:
        """Create an empty staging folder on the store's file system."""
        folder = self._staging_path / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield a staging folder, and remove it afterwards unless it was sealed."""
        folder = self.stage()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def seal(self, staged: Path, parent: Path) -> SealedFolder:
        """Sync a staged folder and rename it to its content ID below ``parent``.

        If a folder with the same content exists and is intact, it is kept instead.
        """
        for path in staged.iterdir():
            sync(path)
        os.utime(staged)  # for the garbage collector, age counts from now, not from the start of training
        sync(staged)
        files = hash_files(staged)
        size = sum(path.stat().st_size for path in staged.iterdir())
        target = parent / content_id(files)
        parent.mkdir(exist_ok=True)
        if target.exists() and find_damage(target, files, size, verify=True):
            os.rename(target, self._staging_path / uuid.uuid4().hex)
        if target.exists():
            os.utime(target)
            shutil.rmtree(staged)
        else:
            os.rename(staged, target)
        for folder in (parent, self.root, self.root.parent):
            sync(folder)
        return SealedFolder(target.name, size, files)

    def manifest(self) -> Manifest:
        """Read the current manifest, again only if the file was replaced; an empty one before the first publication;
        raises ManifestError.
        """
        if self.manifest_path.exists() and not self.manifest_path.is_file():
            raise ManifestError("manifest.json is not a regular file")  # a pipe would block
        try:
            return _read_manifest(self.manifest_path, _version(self.manifest_path))
        except FileNotFoundError:
            return Manifest()
        except UnicodeDecodeError as error:
            raise ManifestError("manifest.json is not text; restore it from a backup") from error
        except OSError as error:
            raise ManifestError(f"manifest.json cannot be read ({error.strerror})") from error

    def is_manifest_canonical(self) -> bool:
        """Check whether the manifest's text is as written; its checksum covers only its values."""
        try:
            text = self.manifest_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return True
        values = json.loads(text)
        indented = json.dumps(values, indent=1)  # by version 1.0
        return text in (f"{json.dumps(values)}\n", f"{indented}\n")

    def replace_manifest(self, current: Manifest, changed: Manifest) -> Manifest:
        """Publish a changed manifest as the next generation.

        Folders that only the previous generation names stay for an hour, because readers may use them.
        """
        for name in current.folder_ids() - changed.folder_ids():
            for parent in (self.shards_path, self.tombstones_path, self.releases_path):
                if (parent / name).exists():
                    os.utime(parent / name)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        published = replace(changed, generation=current.generation + 1, created=created)
        replace_text(self.manifest_path, published.dumps())
        with _manifests_lock:
            _manifests[self.manifest_path, _version(self.manifest_path)] = published
        return published


# Manifests that this process has published or read last, by path and version.
_manifests: LRUCache[tuple[Path, tuple[int, ...]], Manifest] = LRUCache(maxsize=2)
_manifests_lock = Lock()


def _version(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


@cached(_manifests, key=lambda *place: place, lock=_manifests_lock)
def _read_manifest(path: Path, version: tuple[int, ...]) -> Manifest:
    return Manifest.loads(path.read_text(encoding="utf-8"))


_State = dict[str, tuple[int, int, int]]  # inode, bytes and time of change in nanoseconds, by file name


class VerifiedFolders:
    """Compares folders with checksums, and again only after one of their files changed.

    A change is a different inode, size or modification time. Silent corruption that keeps all three goes unnoticed
    until the process ends; ``cinestrata doctor`` reads every byte.
    """

    def __init__(self) -> None:
        self._verified: dict[Path, tuple[_State, dict[str, str]]] = {}
        self._lock = Lock()

    def is_intact(self, folder: Path, files: Mapping[str, str], used: Collection[str] = ()) -> bool:
        """Check whether a folder contains exactly these files (name → SHA-256); of the files, only those that the
        caller has ``used``, or all, are read.
        """
        try:
            # The state is read before the checksums, so the next call notices a change while they are computed.
            state = _file_states(folder)
            with self._lock:
                verified = self._verified.get(folder)
            digests = verified[1] if verified is not None and verified[0] == state else {}
            names = [name for name in used or state if name in state]
            digests = digests | {name: hash_file(folder / name) for name in names if name not in digests}
        except OSError:  # it is missing, unreadable, or contains a folder
            with self._lock:
                self._verified.pop(folder, None)
            return False
        with self._lock:
            self._verified[folder] = state, digests
        return state.keys() == files.keys() and digests.items() <= files.items()


def _file_states(folder: Path) -> _State:
    states = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states.items()}


def list_manifest_files(store_folder: StoreFolder, manifest: Manifest) -> dict[str, tuple[Path, str]]:
    """List the files of a generation, without its manifest: name relative to the store's root → path and SHA-256.

    Files never change, so they can be copied without a lock while others write: a folder that later generations do not
    name stays for an hour.
    """
    folders = [
        *((store_folder.shard_folder(entry.id), entry.files) for entry in manifest.kept_segments()),
        *((store_folder.release_folder(entry.id), entry.files) for entry in manifest.kept_releases()),
        *((store_folder.tombstone_folder(entry.id), entry.files) for entry in manifest.kept_tombstones()),
    ]
    return {
        (folder / name).relative_to(store_folder.root).as_posix(): (folder / name, digest)
        for folder, files in folders
        for name, digest in files.items()
    }
