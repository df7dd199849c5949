"""Choose the backbone and the method of a new task."""

from __future__ import annotations

import json

from sqlalchemy import func, select
from sqlalchemy.orm import aliased

from index.errors import ShardStoreError
from index.files.store_folder import StoreFolder
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.settings import DEFAULT_BACKBONE, Settings, settings


def library_backbone(of: Settings | None = None) -> str:
    """Choose the configured backbone, or else that of the newest domain, or the default for a new library."""
    chosen = of or settings()
    if chosen.backbone is not None:
        return chosen.backbone
    try:
        folder = StoreFolder(chosen.index_dir)
        shards = folder.manifest().shards if chosen.index_dir.exists() else {}
        if shards:  # the newest release may be one of an older domain's upgrade
            newest = [*shards.values()][-1].release
            description = json.loads((folder.release_folder(newest) / "release.json").read_text())
            return str(description["backbone"])
    except (ShardStoreError, OSError, ValueError, KeyError):
        pass  # whoever opens the index next reports the damage
    return DEFAULT_BACKBONE


def backbone_of_task(task_id: str) -> str:
    """Look up a task's backbone: for an append, that of its domain."""
    domain = aliased(Task)
    query = (
        select(func.coalesce(domain.backbone, Task.backbone))
        .select_from(Task)
        .outerjoin(domain, (domain.id == Task.target_id) & ~Task.upgrades)
        .where(Task.id == task_id)
    )
    with session_scope() as session:
        return session.scalar(query) or library_backbone()


def used_backbones() -> list[str]:
    """List the backbones of the learned domains, without the deleted ones."""
    learned = Task.learned_order.is_not(None) & Task.deleted_at.is_(None)
    with session_scope() as session:
        return sorted(filter(None, session.scalars(select(Task.backbone).where(learned).distinct())))


def default_method() -> str:
    """Choose the configured method, or else ``analytic``."""
    return settings().method or "analytic"
