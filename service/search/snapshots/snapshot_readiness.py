"""Readiness of a process by its snapshot: whether it can answer requests, and the reason where it cannot."""

from __future__ import annotations

from cinestrata_schemas.operations import Readiness
from service.search.snapshots.search_snapshot import SearchSnapshot

NOTHING_LEARNED = "no domain has been learned yet"


def describe_readiness(
    snapshot: SearchSnapshot | None, error: str | None, *, is_loaded: bool, has_looked: bool
) -> Readiness:
    """Readiness of a process.

    Args:
        snapshot: Current snapshot; None where none is loaded.
        error: Reason why the newest generation or the backbone cannot be loaded.
        is_loaded: Whether the backbone is loaded.
        has_looked: Whether the process has read the index at least once.
    """
    if snapshot is not None or error is not None:
        index_state = error or "ok"
    else:
        index_state = NOTHING_LEARNED if has_looked else "still loading"
    return Readiness(
        ready=is_loaded and (snapshot is not None or (has_looked and error is None)),
        release=snapshot.release_id if snapshot else None,
        pinned=snapshot is not None and snapshot.is_pinned,
        generation=snapshot.generation if snapshot else 0,
        tasks=len(snapshot.shards) if snapshot else 0,
        degraded=snapshot.degraded_by_name if snapshot else {},
        checks={
            "model": "ok" if is_loaded else error or "still loading",
            "index": index_state if is_loaded else "ok",
            **_describe_pin(snapshot),
            **_describe_verification(snapshot),
        },
    )


def _describe_pin(snapshot: SearchSnapshot | None) -> dict[str, str]:
    """The release that an operator pinned."""
    if snapshot is None or not snapshot.is_pinned:
        return {}
    later = len(snapshot.index_snapshot.manifest.releases_after(snapshot.release_id))
    return {"release": f"{snapshot.release_id[:12]} is pinned; later releases that are not searched: {later}"}


def _describe_verification(snapshot: SearchSnapshot | None) -> dict[str, str]:
    """Progress of shard verification, while it runs."""
    unread = snapshot.index_snapshot.unverified_segments if snapshot else []
    if snapshot is None or not unread:
        return {}
    manifest = snapshot.index_snapshot.manifest
    total = sum(len(manifest.segments(task)) for task in manifest.shards)
    gigabytes = sum(entry.bytes for entry in unread) / 1e9
    return {"checksums": f"{len(unread)} of {total} shards ({gigabytes:.1f} GB) are not verified yet"}
