"""Repair of a store's files from copies, and from values that determine their bytes.

Every published file has a SHA-256 in the manifest, so a candidate is either the exact file or is not used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.arrays import Ids
from index.files.durable_files import find_damage, sync
from index.files.manifest_format import Manifest, SegmentEntry
from index.files.segment_files import describe
from index.shard_store import ShardStore

__all__ = ["DamagedFile", "FileCopies", "describe_text", "encode_ids", "find_damaged_files", "restore_file"]

FileCopies = Callable[[str], bytes | None]  # name relative to the root of the store → content of a copy


@dataclass(frozen=True)
class DamagedFile:
    """A file of the store that is missing or altered.

    Attributes:
        path: The file.
        name: Name relative to the root of the store.
        sha256: SHA-256 of the published file.
        segment: Entry of the segment that the file belongs to; None for files of releases and tombstones.
        task: Task that the file belongs to; empty for releases.
    """

    path: Path
    name: str
    sha256: str
    segment: SegmentEntry | None = None
    task: str = ""


def find_damaged_files(store: ShardStore, manifest: Manifest) -> list[DamagedFile]:
    """All files of a generation that are missing or altered."""
    return [file for file in _files(store, manifest) if _is_damaged(file)]


def restore_file(file: DamagedFile, content: bytes | None) -> bool:
    """Write a file durably if the content is that of the published file.

    Returns:
        Whether the file was written.
    """
    if content is None or hashlib.sha256(content).hexdigest() != file.sha256:
        return False
    file.path.parent.mkdir(parents=True, exist_ok=True)
    staged = file.path.with_name(f".{file.path.name}.{uuid.uuid4().hex}")
    try:
        staged.write_bytes(content)
        sync(staged)
        os.replace(staged, file.path)
    finally:
        staged.unlink(missing_ok=True)
    sync(file.path.parent)
    sync(file.path.parent.parent)
    return True


def describe_text(entry: SegmentEntry) -> bytes:
    """Content of the file that describes a segment."""
    return (json.dumps(describe(entry), indent=1) + "\n").encode()


def encode_ids(ids: Ids) -> bytes:
    """Content of a file of ids."""
    file = io.BytesIO()
    np.save(file, ids, allow_pickle=False)
    return file.getvalue()


def _files(store: ShardStore, manifest: Manifest) -> Iterator[DamagedFile]:
    for release in manifest.releases.values():
        yield from _folder_files(store.root, store.release_folder(release.id), release.files)
    for tombstones in manifest.tombstones.values():
        folder = store.tombstone_folder(tombstones.id)
        yield from _folder_files(store.root, folder, tombstones.files, task=tombstones.task)
    for entry in manifest.all_segments():
        yield from _folder_files(store.root, store.shard_folder(entry.id), entry.files, entry, entry.task)


def _folder_files(
    root: Path, folder: Path, files: dict[str, str], segment: SegmentEntry | None = None, task: str = ""
) -> Iterator[DamagedFile]:
    for name, digest in files.items():
        path = folder / name
        yield DamagedFile(path, path.relative_to(root).as_posix(), digest, segment, task)


def _is_damaged(file: DamagedFile) -> bool:
    return find_damage(file.path.parent, {file.path.name: file.sha256}, None, verify=True) is not None
