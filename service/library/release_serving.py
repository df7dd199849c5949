"""Choose the release that searches use: roll back to an earlier one, and forward again.

Serving a release moves a pointer in the index manifest. Nothing is deleted, trained or embedded, and every server loads
the release when it next reads the manifest. An earlier release is *pinned*: a task published meanwhile becomes the
newest release, continues the previous newest, and is searched once it is served.

* Domains learned after the served release are not searched. Their shards stay.
* Videos appended to earlier domains stay searchable, because an append uses its shard's release.
* A release from before the upgrade of one of its domains is not served: no search would find the domain.
* Deleted videos stay deleted: tombstones belong to the index, not to a release.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.library import DomainChange, PinnedRelease, ServedChange, ServeOutcome
from cinestrata_schemas.problems import Action
from cinestrata_schemas.webhooks import ServedReleaseFacts
from index.errors import ReleaseCorrupt
from index.files.manifest_format import Manifest
from service.access.audit_log import record_change
from service.catalog.database import session_scope
from service.catalog.domain_videos import read_counts
from service.catalog.tables import Release, Task, Video
from service.catalog.task_names import find_task
from service.core.errors import Conflict, NotFound, Unavailable
from service.core.settings import settings
from service.library.alerts import evaluate_alerts
from service.storage import index_manifest
from service.storage.index_manifest import index_lock, library_store, unavailable_if_failing
from service.webhooks.endpoints import emit

log = structlog.get_logger(__name__)

NEWEST = "newest"
_PREFIX = re.compile(r"[0-9a-f]{8,64}")
_NAMED = 20


def serve_release(name_or_id: str, *, dry_run: bool = False) -> ServeOutcome:
    """Serve a release, and report which domains become searchable or unsearchable; with ``dry_run``, only report.

    It is named by its ID or at least 8 characters from its start, by the domain that it learned last, or as ``newest``.
    Raises NotFound, Conflict for a damaged release, or Unavailable; nothing was changed.
    """
    manifest = index_manifest.read_manifest()
    with session_scope() as session:
        target = _find_release(session, name_or_id, manifest)
    before = manifest.served or ""
    if not dry_run:
        # Determine the newest release under the index lock: a task may be publishing another one.
        manifest = _serve(None if name_or_id == NEWEST else target, before)
        target = manifest.served or target
        try:
            evaluate_alerts()  # now; workers do so every minute
        except Unavailable as error:
            log.warning("alerts_not_evaluated", error=str(error))
    with session_scope() as session:
        return _outcome(session, manifest, target, before, dry_run)


def _serve(release: str | None, before: str) -> Manifest:
    """Move the pointer, with an audit log entry and webhook messages."""
    with index_lock(), session_scope(write=True) as session:
        with unavailable_if_failing("The index can't be changed"):
            try:
                store = library_store(settings())
                target = session.get(Release, release) if release else None
                if target is not None:
                    current = store.manifest()
                    later = current.releases_after(target.id)
                    for order, domain in _read_domains(session):
                        if order <= target.learned_order and current.shards[domain.task_id].release in later:
                            raise Conflict(
                                f"The release can't be served: {domain.task} was upgraded after it. Undo the upgrade, "
                                "or serve a later release."
                            )
                manifest = store.serve(release)
            except ReleaseCorrupt as error:
                raise Conflict(f"The release can't be served; nothing was changed: {error}") from error
        if manifest.served != before:
            served = ServedReleaseFacts(
                release=manifest.served,
                before=before,
                newest=manifest.release,
                pinned=manifest.pinned is not None,
            )
            facts = served.model_dump(mode="json")
            record_change(session, "release.serve", manifest.served or "", facts)
            emit(session, "release.served", facts)
    return manifest


def pinned_release(session: Session, manifest: Manifest) -> PinnedRelease | None:
    """Describe a release served instead of the newest, and the domains that it cannot search; None if there is none."""
    if manifest.pinned is None or manifest.release is None:
        return None
    rows = _releases(session, [manifest.pinned, manifest.release])
    if manifest.pinned not in rows:  # the restored catalog is older than the index
        return None
    (pinned, task), newest = rows[manifest.pinned], rows.get(manifest.release)
    later = [domain for order, domain in _read_domains(session) if order > pinned.learned_order]
    return PinnedRelease(
        release=manifest.pinned,
        task=task,
        learned_order=pinned.learned_order,
        newest=manifest.release,
        newest_task=newest[1] if newest else "",
        unsearchable=_change(later),
    )


def _find_release(session: Session, name_or_id: str, manifest: Manifest) -> str:
    """Look up a published release's ID."""
    if name_or_id == NEWEST:
        if manifest.release is None:
            raise NotFound("There is no release yet: no domain has been learned.")
        return manifest.release
    release = name_or_id if name_or_id in manifest.releases else None
    if release is None:
        task = find_task(session, name_or_id)
        owned = task and session.scalar(select(Release.id).where(Release.task_id == task.id))
        release = owned if owned in manifest.releases else None
    if release is None and _PREFIX.fullmatch(name_or_id):
        matches = [name for name in manifest.releases if name.startswith(name_or_id)]
        release = matches[0] if len(matches) == 1 else None
    if release is None or not _releases(session, [release]):
        raise NotFound(f"There is no release {name_or_id[:100]!r}.", remedy=Action(name="list_releases"))
    return release


def _releases(session: Session, ids: Sequence[str]) -> dict[str, tuple[Release, str]]:
    """Read releases, each with the name of the domain that it learned last, by ID."""
    rows = session.execute(select(Release, Task.name).join(Task).where(Release.id.in_(ids)))
    return {release.id: (release, task) for release, task in rows}


def _read_domains(session: Session) -> list[tuple[int, DomainChange]]:
    """Read the learned domains that have videos, each with its learned order, in this order."""
    rows = session.execute(
        select(Task.id, Task.name, Task.learned_order, Task.counts)
        .where(Task.learned_order.is_not(None))
        .order_by(Task.learned_order)
    )
    return [
        (
            order or 0,
            DomainChange(
                task_id=id_, task=name, videos=counts["accepted"], appended=counts.get("appended", 0)
            ),
        )
        for id_, name, order, stored in rows
        if (counts := read_counts(session, id_, stored)).get("accepted")
    ]


def _outcome(session: Session, manifest: Manifest, target: str, before: str, dry_run: bool) -> ServeOutcome:
    rows = _releases(session, [target, before])
    if target not in rows:  # just published; its worker is about to commit the catalog
        raise Unavailable("The newest release is being published; try again.", 2)
    release, task = rows[target]
    order = release.learned_order
    previous = rows[before][0].learned_order if before in rows else order
    domains = _read_domains(session)
    appended = session.scalar(
        select(func.count())
        .select_from(Video)
        .join(Task, Task.id == Video.task_id)
        .where(
            Task.learned_order <= order,
            Video.effective_split == "appended",
            Video.status == "accepted",
            Video.added_at > release.created_at,
        )
    )
    return ServeOutcome(
        release=target,
        task=task,
        learned_order=order,
        created_at=release.created_at,
        before=before,
        newest=manifest.release or target,
        pinned=target != manifest.release,
        changed=target != before,
        dry_run=dry_run,
        unsearchable=_change([domain for at, domain in domains if order < at <= previous]),
        searchable_again=_change([domain for at, domain in domains if previous < at <= order]),
        searchable_videos=sum(domain.videos for at, domain in domains if at <= order),
        kept_appended=appended or 0,
    )


def _change(domains: Sequence[DomainChange]) -> ServedChange:
    return ServedChange(
        domains=len(domains),
        videos=sum(domain.videos for domain in domains),
        appended=sum(domain.appended for domain in domains),
        first=list(domains[:_NAMED]),
    )
