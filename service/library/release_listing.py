"""Lists of releases, in pages by keyset."""

from __future__ import annotations

from sqlalchemy import select

from cinestrata_schemas.releases import ReleasePage, ReleaseSummary
from service.catalog.database import id_chunks, session_scope
from service.catalog.keyset_paging import KeysetOrders
from service.catalog.tables import Release, Task
from service.catalog.task_names import require_task
from service.storage import index_manifest

_ORDERS = KeysetOrders(
    {"learned": Release.learned_order, "created": Release.created_at, "bytes": Release.bytes},
    unique=Release.learned_order,
)


def list_releases(
    *,
    task: str | None = None,
    kind: str | None = None,
    method: str | None = None,
    current: bool | None = None,
    sort: str = "learned",
    cursor: str | None = None,
    limit: int = 100,
) -> ReleasePage:
    """Return a page of releases.

    Args:
        task: Only the release after this task (name or id).
        kind: Only releases of this kind of encoder.
        method: Only releases of this learning method.
        current: Only the release that answers searches, or only the others.
        sort: ``learned`` (order of learning), ``created`` or ``bytes``; with ``-`` in reverse.
        cursor: ``next_cursor`` of the page before.

    Raises:
        NotFound: the task does not exist.
        InvalidInput: the cursor is not one of this list.
        Unavailable: the manifest of the index, or the catalog, cannot be read.
    """
    served = index_manifest.read_manifest().served
    query = select(Release)
    if kind is not None:
        query = query.where(Release.kind == kind)
    if method is not None:
        query = query.where(Release.method == method)
    if current is not None:
        query = query.where(Release.id == (served or "") if current else Release.id != (served or ""))
    with session_scope() as session:
        if task is not None:
            query = query.where(Release.task_id == require_task(session, task).id)
        page = _ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit)
        names: dict[str, str] = {}
        for chunk in id_chunks([release.task_id for release in page.rows]):
            names |= dict(session.execute(select(Task.id, Task.name).where(Task.id.in_(chunk))).all())
    releases = [
        release_summary(release, task=names[release.task_id], current=served) for release in page.rows
    ]
    return ReleasePage(releases=releases, next_cursor=page.next_cursor)


def release_summary(release: Release, *, task: str, current: str | None) -> ReleaseSummary:
    """Return the summary of a release.

    Args:
        current: Identifier of the release that answers searches.
    """
    return ReleaseSummary(
        id=release.id,
        task=task,
        task_id=release.task_id,
        learned_order=release.learned_order,
        method=release.method,
        backbone=release.backbone,
        kind=release.kind,
        bytes=release.bytes,
        created_at=release.created_at,
        current=release.id == current,
        calibration_error=(release.metrics or {}).get("calibration_error"),
    )
