"""Measurements of an append before its publication: drift of the appended videos from their domain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import structlog
from sqlalchemy import Select, select

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import CinestrataError
from service.core.schemas import Drift
from service.core.settings import settings
from trainer.evaluation.append_drift import DRIFT_MARGIN, measure_drift
from trainer.evaluation.gallery import Ids, Query, ShardVectors
from trainer.published_library import Library
from trainer.task_data import TaskData

__all__ = ["MIN_CAPTIONS", "measure_append"]

MIN_CAPTIONS = 10  # of the appended videos, and of the domain; with fewer no interval excludes chance
_MAX_CAPTIONS = 512
_MAX_ROWS = 8 * _MAX_CAPTIONS  # videos that are read to find videos with captions

log = structlog.get_logger(__name__)


def measure_append(
    library: Library,
    backbone: Backbone,
    append: TaskData,
    domain: str,
    shard: ShardVectors,
    report_alive: Callable[[], object],
) -> Drift | None:
    """Compare how well the domain's encoder finds the appended videos and the domain's own.

    The captions are the first ones of the newest appended videos, those of earlier appends included, and of the
    domain's validation and test videos.

    Args:
        library: Published library.
        backbone: Backbone of the library.
        append: Videos of the append.
        domain: Identifier of the domain's task.
        shard: Shard of the domain with the videos of the append.
        report_alive: Called after each part of the measurement.

    Returns:
        None with too few captions, or if the measurement failed: it must not fail the append.

    Raises:
        LeaseLost, TaskCancelled, WorkerStopping: See ``Claim.progress``.
    """
    ids = shard.ids
    appended = _first_captions(
        select(Video.vector_id, Video.captions)
        .where(
            Video.status == "accepted",
            (Video.task_id == append.task_id)
            | ((Video.task_id == domain) & (Video.effective_split == "appended")),
        )
        .order_by(Video.vector_id.desc()),
        ids,
    )
    own = _first_captions(
        select(Video.vector_id, Video.captions)
        .where(
            Video.task_id == domain,
            Video.status == "accepted",
            Video.effective_split.in_(("test", "val")),
        )
        .order_by(Video.vector_id),
        ids,
    )
    if min(len(appended), len(own)) < MIN_CAPTIONS or library.current is None:
        return None
    try:
        encoder = open_query_encoder(backbone, library.current, library.pinned_releases())
        report_alive()
        mode = settings().served_mode(encoder.modes)
        found = measure_drift(encoder, domain, shard, own, appended, mode=mode, report_alive=report_alive)
    except CinestrataError:
        raise
    except Exception:
        log.exception("drift_not_measured", task=append.task_id, domain=domain)
        return None
    if found is None:
        return None
    low, high = found.interval
    return Drift(
        k=found.k,
        domain=round(found.domain, 4),
        appended=round(found.appended, 4),
        domain_captions=found.domain_captions,
        appended_captions=found.appended_captions,
        low=round(low, 4),
        high=round(high, 4),
        relearn=found.exceeds(DRIFT_MARGIN),
    )


def _first_captions(query: Select[int, list[str]], ids: Ids) -> list[Query]:
    """First captions of the first videos of a query that have captions and are among some ids."""
    with session_scope() as session:
        rows = session.execute(query.limit(_MAX_ROWS)).all()
    stored = np.isin(np.array([vector_id for vector_id, _ in rows], np.int64), ids).tolist()
    captioned = [
        Query(captions[0], vector_id)
        for (vector_id, captions), is_stored in zip(rows, stored, strict=True)
        if is_stored and captions
    ]
    return captioned[:_MAX_CAPTIONS]
