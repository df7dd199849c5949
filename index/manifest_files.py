"""The files of one generation, for backups."""

from __future__ import annotations

from pathlib import Path

from index.files.manifest_format import Manifest
from index.files.store_folder import StoreFolder


def list_manifest_files(store_folder: StoreFolder, manifest: Manifest) -> dict[str, tuple[Path, str]]:
    """Files of a generation, without its manifest.

    Files never change, so they can be copied without a lock while others write: a folder that a later generation no
    longer names stays for an hour.

    Returns:
        Name relative to the root of the store → path and SHA-256.
    """
    folders = [
        *((store_folder.shard_folder(entry.id), entry.files) for entry in manifest.all_segments()),
        *((store_folder.release_folder(entry.id), entry.files) for entry in manifest.releases.values()),
        *((store_folder.tombstone_folder(entry.id), entry.files) for entry in manifest.tombstones.values()),
    ]
    return {
        (folder / name).relative_to(store_folder.root).as_posix(): (folder / name, digest)
        for folder, files in folders
        for name, digest in files.items()
    }
