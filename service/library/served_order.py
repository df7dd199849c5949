"""The last domain that searches use while an earlier release is served."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from index.files.manifest_format import Manifest
from service.catalog.tables import Release


def last_served_order(session: Session, manifest: Manifest) -> int | None:
    """Return the learned order of the last domain that is searched; None: all learned domains are searched.

    Args:
        session: Session of the caller.
        manifest: Manifest of the index, which names a pinned release.
    """
    if manifest.pinned is None:
        return None
    return session.scalar(select(Release.learned_order).where(Release.id == manifest.pinned))
