"""What a copy of one generation must hold. Any tool may copy it while others write, for the files never change."""

from __future__ import annotations

from pathlib import Path

from index.files.manifest_format import Manifest
from index.shard_store import ShardStore

__all__ = ["list_manifest_files"]


def list_manifest_files(store: ShardStore, manifest: Manifest) -> dict[str, tuple[Path, str]]:
    """Files that a generation consists of, besides its manifest: name below the store's root → file and SHA-256.

    Nothing needs to be locked: a folder that a later generation does without stays for an hour.
    """
    folders = [
        *(
            (store.shard_folder(part.id), part.files)
            for task in manifest.shards
            for part in manifest.segments(task)
        ),
        *((store.release_folder(entry.id), entry.files) for entry in manifest.releases.values()),
        *((store.tombstone_folder(entry.id), entry.files) for entry in manifest.tombstones.values()),
    ]
    return {
        (folder / name).relative_to(store.root).as_posix(): (folder / name, digest)
        for folder, files in folders
        for name, digest in files.items()
    }
