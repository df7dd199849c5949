"""Overview of the library with all shards and releases."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select

from cinestrata_schemas.library import LibraryOverview
from service.catalog.database import session_scope
from service.catalog.tables import Release, Task
from service.library.library_status import library_status
from service.library.release_listing import release_summary
from service.library.shard_listing import list_shards

__all__ = ["overview"]


def overview(degraded: Mapping[str, str] | None = None) -> LibraryOverview:
    """Return the state of the library, and all shards and releases.

    Args:
        degraded: Reasons by task id from the search snapshot of this process. Differences between the manifest and the
            catalog are added.

    Raises:
        Unavailable: the catalog is unreachable.
    """
    status = library_status(degraded)
    with session_scope() as session:
        names = dict(session.execute(select(Task.id, Task.name)).all())
        releases = session.scalars(select(Release).order_by(Release.learned_order)).all()
    return LibraryOverview(
        **dict(status),
        shards=list_shards(degraded).shards,
        releases=[
            release_summary(release, task=names[release.task_id], current=status.release)
            for release in releases
        ],
    )
