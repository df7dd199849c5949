"""Confidence model of a snapshot with appended videos: that of the release, fitted again by the newest append."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from models.routing.confidence_model import ConfidenceModel
from service.catalog.calibration_rows import read_calibration
from service.catalog.database import session_scope

__all__ = ["parse_confidence", "read_appended_confidence"]

log = structlog.get_logger(__name__)


def read_appended_confidence(release_id: str, generation: int) -> dict[str, Any] | None:
    """Return the JSON object of the model that an append fitted again for a release; None without one.

    Args:
        release_id: Identifier of the release.
        generation: Generation of the index.

    Raises:
        Unavailable: the catalog cannot be read.
    """
    with session_scope() as session:
        return read_calibration(session, release_id, generation)


def parse_confidence(stored: Mapping[str, Any] | None) -> ConfidenceModel | None:
    """Return the model of a JSON object; None if it is not valid."""
    if stored is None:
        return None
    try:
        return ConfidenceModel.from_json(dict(stored))
    except (KeyError, TypeError, ValueError) as error:
        log.warning("appended_calibration_not_read", error=str(error))
        return None
