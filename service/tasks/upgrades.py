"""Upgrade domains: learn their videos again with another backbone or method, and undo or accept upgrades.

An upgrade is a task of its own, which the learning worker processes in order of the queue. The domain stays searchable
with its previous shard until the new one is published in its place. The index keeps the previous shard until the
upgrade is accepted or followed by another one, so that it can be undone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import structlog
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.domain_names import MAX_NAME_CHARS
from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import TaskDetails, UpgradeSpec
from index.arrays import video_ids_of
from index.files.manifest_format import Manifest
from service.access.audit_log import record_change
from service.catalog.database import id_chunks, now, session_scope
from service.catalog.domain_videos import count_edit, count_task_videos
from service.catalog.tables import ACTIVE_STATES, Recall, Shard, Task, Video
from service.core.errors import CinestrataError, Conflict, InvalidInput
from service.core.settings import settings
from service.storage import index_manifest
from service.storage.disk_budget import require_disk_space
from service.storage.index_manifest import index_lock, library_store, unavailable_if_failing
from service.storage.library_backbone import library_backbone
from service.tasks import ingestion_checks
from service.tasks.lifecycle import send_due
from service.tasks.lifecycle.publishing import find_undoable, settle_upgrade, shard_columns
from service.tasks.lifecycle.state_machine import (
    is_published,
    lacks_upgrade,
    last_upgrade,
    lock_task,
    next_position,
    record,
)
from service.tasks.task_storage import insert_queued_task, new_id, require_domain, task_details

UNDO_DAYS = 14  # afterwards, maintenance accepts an upgrade

log = structlog.get_logger(__name__)


def upgrade_domain(task_id: str, spec: UpgradeSpec) -> TaskDetails:
    """Store a task that learns a domain (named by its ID or that of an append) again, and notify the workers.

    Raises NotFound; InvalidInput if backbone, method and settings are invalid, or do not fit the domain; Conflict if
    the domain is not learned, has the backbone and method already, or is being upgraded, or if an earlier release is
    served, which could not search it; InsufficientStorage and Unavailable as ``commands.create_task``.
    """
    with session_scope() as session:
        domain = require_domain(session, task_id, "it can be upgraded")
    fields = upgrade_fields(domain, spec)
    with session_scope(write=True) as session:
        # Take the position first: its lock makes concurrent requests wait, so the following checks stay valid.
        position = next_position(session)
        domain = session.get_one(Task, domain.id)
        upgrade_id = new_id("tsk")
        suffix = f" (upgrade {upgrade_id})"
        name = domain.name[: MAX_NAME_CHARS - len(suffix)] + suffix
        task = Task(id=upgrade_id, position=position, name=name, target_id=domain.id, upgrades=True, **fields)
        task.partial = spec.partial
        require_upgradable(session, domain, task)
        require_disk_space(int(domain.counts.get("accepted") or 0), backbone=task.backbone)
        task.probed_at = now(session)  # its videos were probed with the domain
        insert_queued_task(session, task, (), 0)
        record_change(session, "task.upgrade", domain.id, {"upgrade": upgrade_id, **fields})
        view = task_details(session, [task])[0]
    send_due()
    return view


def upgrade_fields(domain: Task, spec: UpgradeSpec) -> dict[str, Any]:
    """Complete and check an upgrade's backbone, method and settings."""
    method, chosen = spec.method, spec.settings
    backbone = spec.backbone or library_backbone()
    if method is None and ingestion_checks.find_method_error(domain.method, backbone) is None:
        method = domain.method
    if chosen is None and method == domain.method:
        chosen = domain.settings
    fields = ingestion_checks.task_fields(method, chosen, backbone)
    if domain.held_out == "cross_fitted" and not ingestion_checks.learns_all_captions(
        fields["method"], fields["settings"]
    ):
        # No caption was held out: the method must measure itself like the previous one, unless it learns nothing.
        if fields["settings"].get("last_epoch") == "train":
            message = "The domain holds out no captions, so recall must be measured by cross-fitting."
            raise InvalidInput.at("settings.last_epoch", message, "Send 'all', or leave it out.")
        if fields["method"] != "zero_shot":
            fields["settings"] = {**fields["settings"], "last_epoch": "all"}
    ingestion_checks.raise_first(ingestion_checks.task_errors(**fields))
    return fields


def require_upgradable(session: Session, domain: Task, upgrade: Task) -> None:
    """Check that nothing stands in the way of an upgrade of a domain, new or retried; raise Conflict."""
    if domain.deleted_at is not None:
        raise Conflict(f"The domain {domain.id} was deleted.")
    _require_no_unfinished(session, domain, Task.upgrades, "upgrade")
    manifest = index_manifest.read_manifest()
    if manifest.pinned is not None:
        raise Conflict(
            "An earlier release is served, which could not search the upgraded domain. Serve the newest release first.",
            remedy=Action(name="list_releases"),
        )
    if is_published(session, upgrade):
        return  # only its catalog rows are missing
    _require_complete(session, domain, manifest)
    is_whole = manifest.keys_of(domain.id) == [domain.id]  # a partial upgrade can be repeated
    if is_whole and (upgrade.backbone, upgrade.method) == (domain.backbone, domain.method):
        raise Conflict(
            f"The domain {domain.name!r} has backbone {domain.backbone!r} and method {domain.method!r} already. "
            "Name another backbone or method."
        )


def _require_complete(session: Session, domain: Task, manifest: Manifest, *, undoes: bool = False) -> None:
    if lacks_upgrade(domain, manifest):
        upgrade = last_upgrade(session, domain.id)
        raise Conflict(
            f"The upgrade {upgrade} of {domain.name!r} is published, but not complete; retry it first.",
            remedy=Action(name="retry_task", id=upgrade),
        )
    if manifest.shards[domain.id].release != domain.release_id and not undoes:
        raise Conflict(f"An upgrade of {domain.name!r} was not undone completely; undo it again.")


def _require_no_unfinished(session: Session, domain: Task, kind: Any, name: str) -> None:
    unfinished = select(Task.id).where(Task.target_id == domain.id, Task.state.in_(ACTIVE_STATES), kind)
    if (task_id := session.scalar(unfinished.limit(1))) is not None:
        raise Conflict(
            f"The {name} {task_id} of {domain.name!r} is not finished; wait for it, or cancel it.",
            remedy=Action(name="show_task", id=task_id),
        )


def undo_upgrade(task_id: str) -> TaskDetails:
    """Give a domain back the shard, backbone and method that it had before its upgrade; deleted videos stay deleted.

    A repeated call completes an interrupted one. Raises NotFound, Conflict if no upgrade can be undone or videos were
    appended since, or Unavailable if index or catalog cannot be written; the request can be repeated.
    """
    with index_lock(), session_scope(write=True) as session:
        domain = lock_task(session, require_domain(session, task_id, "an upgrade can be undone").id)
        _require_no_unfinished(session, domain, Task.upgrades, "upgrade")
        upgrade = find_undoable(session, domain.id)
        if upgrade is None or upgrade.undo is None:
            raise Conflict(f"The domain {domain.name!r} has no upgrade that can be undone.")
        row, before = upgrade.upgrade_order, upgrade.undo["columns"]
        store, manifest = library_store(settings()), index_manifest.read_manifest()
        _require_complete(session, domain, manifest, undoes=True)
        # After a kill, the index may have the previous shard already. Appends then wait for the catalog.
        is_interrupted = manifest.shards[domain.id].release == before["release_id"]
        if not is_interrupted:
            _require_no_unfinished(session, domain, ~Task.upgrades, "append")
        accepted = (Video.task_id == domain.id) & (Video.status == "accepted")
        query = select(Video.vector_id, Video.effective_split).where(accepted)
        videos = {vector_id: split for vector_id, split in session.execute(query)}
        if appended := [*videos.values()].count("appended"):
            raise Conflict(
                f"{appended} videos were appended to {domain.name!r} since its upgrade, and the previous shard lacks "
                f"them. Upgrade it to {before['backbone']!r} with method {before['method']!r} instead."
            )
        with unavailable_if_failing("The upgrade can't be undone"):
            if not is_interrupted:
                replaced = manifest.replaced.get(domain.id)
                # A restored index may lack it.
                if replaced is None or replaced.segments[0].release != before["release_id"]:
                    raise Conflict(
                        f"The index no longer has the shard of {domain.name!r} before its upgrade."
                    )
                segments = [e for shard in (replaced, *replaced.parts.values()) for e in shard.segments]
                stored = np.concatenate([store.segment_ids(entry) for entry in segments])
                deleted = set(video_ids_of(stored).tolist()) - videos.keys()
                manifest = store.undo_upgrade(domain.id, deleted)
        for name, value in before.items():
            setattr(domain, name, value)
        for chunk in id_chunks(upgrade.undo["appended"]):
            was_appended = (Video.task_id == domain.id) & Video.vector_id.in_(chunk)
            session.execute(update(Video).where(was_appended).values(effective_split="appended"))
        domain.counts = count_task_videos(session, domain.id)
        shard = shard_columns(manifest.segments(domain.id))
        session.execute(update(Shard).where(Shard.task_id == domain.id).values(shard))
        is_later = (Recall.task_order == domain.learned_order) & (Recall.release_order > row)
        session.execute(delete(Recall).where(is_later | (Recall.release_order == row)))
        settle_upgrade(session, domain.id, "undone")
        record(session, domain.id, "log", {"message": f"The upgrade from {domain.backbone} was undone."})
        record_change(session, "task.upgrade.undo", domain.id, {"release": domain.release_id})
        view = task_details(session, [domain])[0]
        # The previous release has not learned the captions of videos appended before the upgrade.
        count_edit(session, domain.id, [], captions=True, metadata=True)
    return view


def accept_upgrade(task_id: str) -> TaskDetails:
    """Keep a domain's upgrade, and drop the previous shard. Idempotent; raise NotFound, Conflict or Unavailable."""
    with index_lock(), session_scope(write=True) as session:
        domain = lock_task(session, require_domain(session, task_id, "an upgrade can be accepted").id)
        _require_complete(session, domain, index_manifest.read_manifest())
        with unavailable_if_failing("The upgrade can't be accepted"):
            library_store(settings()).accept_upgrade(domain.id)
        settle_upgrade(session, domain.id, "accepted")
        record_change(session, "task.upgrade.accept", domain.id, {"release": domain.release_id})
        return task_details(session, [domain])[0]


def settle_old_upgrades() -> None:
    """Accept upgrades that were not undone for ``UNDO_DAYS``, and complete interrupted calls of :func:`undo_upgrade`.

    A domain where this fails is tried again the next time; the others do not wait for it.
    """
    with session_scope() as session:
        limit = now(session) - timedelta(days=UNDO_DAYS)
        undoable = session.scalars(select(Task).where(Task.undo.is_not(None))).all()
    shards = index_manifest.read_manifest().shards if undoable else {}
    for task in undoable:
        domain = task.target_id or ""
        try:
            if task.undo and shards[domain].release == task.undo["columns"]["release_id"]:
                undo_upgrade(domain)
            elif task.finished_at and task.finished_at < limit:
                accept_upgrade(domain)
        except CinestrataError as error:
            log.warning("upgrade_not_settled", domain=domain, reason=str(error))
