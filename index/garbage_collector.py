"""Remove folders that no manifest lists."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from index.errors import ShardStoreError
from index.files.segment_files import DESCRIPTION
from index.files.store_folder import StoreFolder
from index.shards.vector_store import VectorStore

_MIN_AGE_SECONDS = 3600  # readers and writers may still use younger folders


class GarbageCollector:
    """Removes what writers left behind: staged folders, and sealed folders that the manifest does not list."""

    def __init__(self, store_folder: StoreFolder, remote: VectorStore | None) -> None:
        """Create a garbage collector.

        Args:
            remote: Store for rows outside their segment's folder.
        """
        self._store_folder = store_folder
        self._remote = remote

    def collect(self, timeout: float | None = None) -> None:
        """Remove folders older than an hour, with their rows in the remote store.

        Nothing is removed without a manifest, because a lost manifest may be restored from a backup.

        Args:
            timeout: Maximum seconds to wait for the write lock; None waits forever.

        Raises:
            TimeoutError: Another writer held the lock that long; nothing was removed.
        """
        if not self._store_folder.manifest_path.exists():
            return
        with self._store_folder.write_lock(timeout):
            referenced = self._store_folder.manifest().folder_ids()
            latest = time.time() - _MIN_AGE_SECONDS
            for folder in self._store_folder.folders():
                if (
                    folder.name not in referenced
                    and _modified_before(folder, latest)
                    and self._drop_rows(folder)
                ):
                    shutil.rmtree(folder, ignore_errors=True)

    def _drop_rows(self, folder: Path) -> bool:
        """Remove a folder's remote rows; False if that failed and the folder must stay for the next attempt."""
        try:
            place = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")).get("place", "")
        except (OSError, ValueError, AttributeError):
            return True  # not a segment, or one that was never sealed
        if not place:
            return True
        try:
            if self._remote is None:
                return False
            self._remote.drop(folder.name, place)
        except ShardStoreError:
            return False
        return True


def _modified_before(folder: Path, timestamp: float) -> bool:
    """Check whether a folder is older than a timestamp; False if a writer has renamed it since it was listed."""
    try:
        return folder.stat().st_mtime < timestamp
    except FileNotFoundError:
        return False
