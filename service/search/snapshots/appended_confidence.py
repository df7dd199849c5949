"""Confidence model of a snapshot with appended videos: that of the release, fitted again by the newest append."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from models.routing.confidence_model import ConfidenceModel
from service.catalog.calibration_rows import read_calibration
from service.catalog.database import session_scope
from service.core.errors import Unavailable

__all__ = ["appended_confidence"]

log = structlog.get_logger(__name__)


def appended_confidence(
    release_id: str, generation: int, appended: Collection[str]
) -> ConfidenceModel | None:
    """The confidence model that an append fitted again for the release; None without one, or without a catalog.

    Args:
        release_id: Identifier of the release.
        generation: Generation of the index.
        appended: Tasks with appended videos.
    """
    if not appended:
        return None
    try:
        with session_scope() as session:
            stored = read_calibration(session, release_id, generation)
        return None if stored is None else ConfidenceModel.from_json(stored)
    except (Unavailable, KeyError, TypeError, ValueError) as error:
        log.warning("appended_calibration_not_read", error=str(error))
        return None
