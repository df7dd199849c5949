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
    return chosen.backbone or _newest_backbone(chosen) or DEFAULT_BACKBONE


def served_backbone(of: Settings) -> str:
    """Choose the backbone that searches load first: that of the newest domain, or of new ones in a new library."""
    return _newest_backbone(of) or library_backbone(of)


def _newest_backbone(of: Settings) -> str | None:
    try:
        folder = StoreFolder(of.index_dir)
        shards = folder.manifest().shards if of.index_dir.exists() else {}
        if shards:  # the newest release may be one of an older domain's upgrade
            newest = [*shards.values()][-1].release
            description = json.loads((folder.release_folder(newest) / "release.json").read_text())
            return str(description["backbone"])
    except (ShardStoreError, OSError, ValueError, KeyError):
        pass  # whoever opens the index next reports the damage
    return None


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
