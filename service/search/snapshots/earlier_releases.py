"""Snapshots of earlier releases, with which lists of results that began before a publication are continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import structlog
from cachetools import LRUCache

from index.errors import ShardStoreError
from models.backbones.backbone import Backbone
from models.errors import ModelError
from service.core.errors import FieldError, Gone, Unavailable
from service.search.snapshots.search_snapshot import SearchSnapshot

__all__ = ["EarlierReleases"]

log = structlog.get_logger(__name__)

_CACHED = 2
_RETRY_SECONDS = 5


class EarlierReleases:
    """Cache of the snapshots of earlier releases. Thread-safe."""

    def __init__(self) -> None:
        self._cached: LRUCache[str, SearchSnapshot] = LRUCache(_CACHED)  # by release ID
        self._lock = Lock()

    def __iter__(self) -> Iterator[str]:
        """IDs of the releases in memory."""
        return iter(list(self._cached))

    @contextmanager
    def dropped(self) -> Iterator[None]:
        """Drop all snapshots, and load none while the caller replaces the current one.

        They are loaded again on demand. They then share memory with the new snapshot, and use no folder that its
        generation has dropped.
        """
        with self._lock:
            self._cached.clear()
            yield

    def load(
        self, release_id: str, read_current: Callable[[], SearchSnapshot], backbone: Backbone
    ) -> SearchSnapshot:
        """The snapshot of an earlier release, from memory where it is cached.

        Args:
            release_id: Identifier of the release.
            read_current: Returns the snapshot that answers new searches.
            backbone: Backbone of all releases.

        Raises:
            Gone: The release is no longer kept, or is no longer served.
            Unavailable: The memory of the process or of the GPU has no space for the release.
        """
        with self._lock:
            snapshot = self._cached.get(release_id)
            if snapshot is not None:
                return snapshot
            current = read_current()
            reason = "The release that began this list is no longer kept"
            manifest = current.index_snapshot.manifest
            if release_id not in manifest.releases:
                raise _gone(f"{reason}.")
            # A list that began with a withdrawn release would show videos that are no longer searchable.
            if manifest.pinned and release_id in manifest.releases_after(manifest.pinned):
                raise _gone("The release that began this list is no longer served.")
            try:
                snapshot = SearchSnapshot.load(current.index_snapshot, backbone, release_id, other=current)
            except (ModelError, ShardStoreError, OSError) as error:
                raise _gone(f"{reason} intact: {error}.") from error
            except (MemoryError, RuntimeError) as error:  # PyTorch and FAISS raise either where a GPU is full
                log.warning("earlier_release_not_loaded", release=release_id, error=str(error))
                raise Unavailable(
                    "The release that began this list cannot be loaded now; search again without the cursor, or try "
                    f"again in {_RETRY_SECONDS} seconds.",
                    _RETRY_SECONDS,
                ) from error
            self._cached[release_id] = snapshot
            return snapshot


def _gone(reason: str) -> Gone:
    hint = "Search again without the cursor."
    return Gone(f"cursor: {reason} {hint}", [FieldError("cursor", reason, hint)])
