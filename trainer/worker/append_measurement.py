"""Measurements of an append before its publication: drift of its videos from their domain, and calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import structlog
from sqlalchemy import Select, select

from cinestrata_schemas.tasks import Drift
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import ConfidenceModel
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import CinestrataError
from trainer.evaluation.append_drift import DRIFT_MARGIN, DriftMeasurement, measure_drift
from trainer.evaluation.gallery import Ids, Query, ShardVectors
from trainer.published_library import Library
from trainer.release_calibration import fit_library_confidence
from trainer.task_data import TaskData
from trainer.worker.catalog_reader import appended_captions, calibration_captions, held_out_videos

MIN_CAPTIONS = (
    10  # with fewer captions a calibration hardly changes, and held-out captions hardly show a difference
)
_MIN_DRIFTED = 3  # appended captions; fewer are seldom more than chance
_MAX_CAPTIONS = 512
_MAX_ROWS = 8 * _MAX_CAPTIONS  # videos that are read to find videos with captions

log = structlog.get_logger(__name__)


class AppendMeasurement(NamedTuple):
    """Results of the captions of an append.

    Attributes:
        drift: Drift of the appended videos from their domain; None with too few captions.
        confidence: Confidence model of the release with the appended videos and captions; None with too few captions.
    """

    drift: Drift | None = None
    confidence: ConfidenceModel | None = None


def measure_append(
    library: Library,
    backbone: Backbone,
    append: TaskData,
    domain: str,
    shard: ShardVectors,
    report_alive: Callable[[], object],
) -> AppendMeasurement:
    """Compare how well the domain's encoder finds appended videos and its own, and calibrate the release again.

    Args:
        library: Published library.
        backbone: Backbone of the library.
        domain: Identifier of the domain's task.
        report_alive: Called after each part of the measurement.

    Returns:
        Nothing if the append has few captions, or if the measurement failed: it must not fail the append.

    Raises:
        LeaseLost, TaskCancelled, WorkerStopping: See ``Claim.progress``.
    """
    state = library.current
    if state is None:
        return AppendMeasurement()
    try:
        ids = shard.ids
        appended = _appended_captions(append.task_id, domain, ids)
        own = _domain_captions(domain, ids, ("test", "val"))
        if is_learned := len(own) < MIN_CAPTIONS:
            own = _domain_captions(domain, ids, ("test", "val", "train"))
        # With the captions of earlier appends: many small ones change a library as much as a large one.
        is_calibrated = len(appended) >= MIN_CAPTIONS
        has_drift = bool(own) and len(appended) >= _MIN_DRIFTED
        if not (is_calibrated or has_drift):
            return AppendMeasurement()
        encoder = open_query_encoder(backbone, state, library.pinned_releases())
        report_alive()
        mode = encoder.modes[-1]
        drift, confidence = None, None
        if has_drift:
            drift = _drift_record(
                measure_drift(
                    encoder,
                    domain,
                    shard,
                    own,
                    appended,
                    mode=mode,
                    is_learned=is_learned,
                    report_alive=report_alive,
                )
            )
        if is_calibrated:
            confidence = fit_library_confidence(
                encoder,
                library,
                state,
                (domain, shard),
                held_out_videos(domain),
                calibration_captions(domain),
                appended_captions(library.manifest.shards, append.task_id),
                prior=DEFAULT_PRIOR,
                mode=mode,
                report_alive=report_alive,
            )
        return AppendMeasurement(drift, confidence)
    except CinestrataError:
        raise
    except Exception:
        log.exception("append_not_measured", task=append.task_id, domain=domain)
        return AppendMeasurement()


def _appended_captions(append: str, domain: str, ids: Ids) -> list[Query]:
    """First captions of the newest appended videos of a domain, those of earlier appends included."""
    of_domain = (Video.task_id == domain) & (Video.effective_split == "appended")
    return _first_captions(
        select(Video.vector_id, Video.captions)
        .where(Video.status == "accepted", (Video.task_id == append) | of_domain)
        .order_by(Video.vector_id.desc()),
        ids,
    )


def _domain_captions(domain: str, ids: Ids, splits: Sequence[str]) -> list[Query]:
    """First captions of a domain's videos with some splits."""
    return _first_captions(
        select(Video.vector_id, Video.captions)
        .where(
            Video.task_id == domain,
            Video.status == "accepted",
            Video.effective_split.in_(splits),
        )
        .order_by(Video.vector_id),
        ids,
    )


def _drift_record(found: DriftMeasurement | None) -> Drift | None:
    if found is None:
        return None
    low, high = found.interval
    return Drift(
        k=found.k,
        domain=round(found.domain, 4),
        appended=round(found.appended, 4),
        domain_captions=found.domain_captions,
        appended_captions=found.appended_captions,
        learned=found.is_learned,
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
