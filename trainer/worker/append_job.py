"""Append job: the Celery task that embeds the videos of an append and publishes them as a segment of a domain's shard.

::

    claim ─▶ embedding with the pinned release ─▶ append segment ─▶ ready

Nothing is trained, and no existing file of the index changes. The process may be killed at any line and the job started
again: an append whose vectors are in the shard is only completed in the catalog.

Before its publication, an append is measured: the drift of its videos from their domain, and the calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import structlog
from sqlalchemy import Select, select

from cinestrata_schemas.tasks import Drift
from index.errors import ShardStoreError
from index.files.manifest_format import SegmentEntry
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import ConfidenceModel
from service.catalog.database import session_scope
from service.catalog.domain_videos import store_calibration
from service.catalog.tables import Video
from service.celery_worker import worker_name
from service.core.errors import CinestrataError, Unavailable
from service.library.compaction import update_shard_rows
from service.library.deletion import delete_videos
from service.storage.index_manifest import index_lock
from service.tasks import lifecycle
from service.tasks.broker import APPEND, celery_app
from service.tasks.lifecycle import Claim, send_due
from trainer.errors import LibraryDamaged, VectorIdsTaken
from trainer.evaluation.append_drift import DRIFT_MARGIN, DriftMeasurement, measure_drift
from trainer.evaluation.gallery import Ids, Query, ShardVectors
from trainer.published_library import Library
from trainer.release_calibration import fit_library_confidence
from trainer.task_data import TaskData
from trainer.video_embedding import group_segments
from trainer.worker.catalog_reader import (
    appended_captions,
    calibration_captions,
    held_out_videos,
    load_task,
    remaining_videos,
    restarted_without_deleted_videos,
)
from trainer.worker.job_environment import clean_up, open_library, recorded_failure, task_backbone
from trainer.worker.shared_embedding import embed_shared
from trainer.worker.video_decoding import embed_task_moments, restore_task_frames

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
        domain: ID of the domain's task.
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
        drift, confidence = None, None
        if has_drift:
            drift = _drift_record(
                measure_drift(
                    encoder,
                    domain,
                    shard,
                    own,
                    appended,
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
                report_alive=report_alive,
            )
        return AppendMeasurement(drift, confidence)
    except CinestrataError:
        raise
    except Exception:
        log.exception("append_not_measured", task=append.task_id, domain=domain)
        return AppendMeasurement()


def _appended_captions(append: str, domain: str, ids: Ids) -> list[Query]:
    """Return the first captions of the newest appended videos of a domain, those of earlier appends included."""
    of_domain = (Video.task_id == domain) & (Video.effective_split == "appended")
    return _first_captions(
        select(Video.vector_id, Video.captions)
        .where(Video.status == "accepted", (Video.task_id == append) | of_domain)
        .order_by(Video.vector_id.desc()),
        ids,
    )


def _domain_captions(domain: str, ids: Ids, splits: Sequence[str]) -> list[Query]:
    """Return the first captions of a domain's videos with some splits."""
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
    """Return the first captions of the first videos of a query that have captions and are among some IDs."""
    with session_scope() as session:
        rows = session.execute(query.limit(_MAX_ROWS)).all()
    stored = np.isin(np.array([vector_id for vector_id, _ in rows], np.int64), ids).tolist()
    captioned = [
        Query(captions[0], vector_id)
        for (vector_id, captions), is_stored in zip(rows, stored, strict=True)
        if is_stored and captions
    ]
    return captioned[:_MAX_CAPTIONS]


_SAME_VECTOR = 0.99  # cosine of two embeddings of a video, perhaps on different machines
MAX_SEGMENTS = 16  # of a shard; one more, and its segments are copied into one


@celery_app.task(name=APPEND, ignore_result=True)
def run_append_job(task_id: str) -> None:
    """Embed and publish the videos of an append if they are due, then send the messages for due tasks."""
    claim = lifecycle.claim_append(task_id, worker_name())
    if claim is not None:
        with claim, recorded_failure(claim):
            process_append(claim)
    send_due()


def process_append(claim: Claim) -> None:
    """Take a claimed append to the state ``ready``.

    Raises:
        LeaseLost, TaskCancelled, WorkerStopping: See ``Claim.progress``.
        LibraryDamaged: The shard of the domain is missing or cannot be read.
        VectorIdsTaken: The shard of the domain has some of the IDs already.
    """
    claim.progress("loading")
    backbone, library = task_backbone(), open_library()
    domain = claim.task.target_id or ""
    if domain not in library.manifest.shards:
        raise LibraryDamaged(f"the manifest lists no shard of task {domain}")
    if domain in library.degraded:
        raise LibraryDamaged(f"the shard of task {domain} cannot be read: {library.degraded[domain]}")
    task = load_task(claim, backbone)
    ids = np.array([clip.vector_id for clip in task.clips], np.int64)
    claim.advance("indexing")
    segments: list[SegmentEntry] = []
    stored = library.store.stored_ids(domain, ids)
    if 0 < len(stored) < len(ids):
        _require_own_vectors(claim, library, backbone, task, stored)
        # A deletion was killed after its tombstones, and a compaction has dropped the vectors.
        missing = set(np.setdiff1d(ids, stored).tolist())
        delete_videos([clip.id for clip in task.clips if clip.vector_id in missing], task_id=claim.task.id)
        task = load_task(claim, backbone)
        ids = np.array([clip.vector_id for clip in task.clips], np.int64)
    if len(ids) and not len(stored):
        with restarted_without_deleted_videos(task):
            segments = _write_segments(claim, library, backbone, task, domain)
    claim.progress("measuring")
    library = open_library()  # releases and segments may have been replaced during the embedding
    measured = _measure(claim, library, backbone, task, domain, segments)
    if measured.confidence is not None:
        _store_calibration(claim, library, measured.confidence, is_published=not segments)
    with index_lock(claim.tick), claim.appending() as publication:
        # The transaction locks the append's row, so every later deletion finds the vectors published.
        remaining = {clip.vector_id for clip in remaining_videos(task).clips}
        deleted = [video for video in ids.tolist() if video not in remaining]
        manifest = library.store.append(
            *segments,
            deleted=(domain, [*deleted, *publication.rejected]),
            before_replace=publication.require_lock,
        )
        entries = manifest.segments(domain)
        publication.complete(
            vectors=sum(entry.count for entry in entries),
            size=sum(entry.bytes for entry in entries),
            drift=measured.drift,
        )
    _compact(library, domain)
    clean_up(task)


def _require_own_vectors(
    claim: Claim, library: Library, backbone: Backbone, task: TaskData, stored: Ids
) -> None:
    """Check that a shard stores the vectors of an append's videos, and not those of other videos with their IDs.

    Args:
        stored: IDs of the videos that the shard of the domain stores.

    Raises:
        VectorIdsTaken: they are other videos, which a restored catalog does not know.
    """
    domain = claim.task.target_id or ""
    manifest = library.manifest
    found = library.store.open([entry for entry in manifest.segments(domain) if entry.count]).vectors(stored)
    restore_task_frames(claim, task, backbone)
    fingerprint = manifest.shards[domain].fingerprint
    own = embed_shared(claim, task.clips, library.video_encoder(backbone, domain), fingerprint)
    videos = np.array([clip.vector_id for clip in task.clips], np.int64)
    cosines = np.einsum("nd,nd->n", found, own[np.isin(videos, stored)], dtype=np.float64)
    if cosines.min() < _SAME_VECTOR:
        raise VectorIdsTaken(
            f"The shard of task {domain} has vectors of other videos with {len(stored)} of the {len(videos)} IDs of "
            "this append"
        )


def _write_segments(
    claim: Claim, library: Library, backbone: Backbone, task: TaskData, domain: str
) -> list[SegmentEntry]:
    """Embed the videos of an append and their moments; the segments are not published."""
    restore_task_frames(claim, task, backbone)
    encode = library.video_encoder(backbone, domain)
    pinned = library.manifest.shards[domain]
    videos = np.array([clip.vector_id for clip in task.clips], np.int64)
    vectors = embed_shared(claim, task.clips, encode, pinned.fingerprint)
    claim.progress("writing")
    write = partial(
        library.store.write_shard, task=domain, release=pinned.release, fingerprint=pinned.fingerprint
    )
    moments = group_segments(embed_task_moments(claim, encode, backbone))
    return [
        write(ids=videos, vectors=vectors),
        *(write(ids=ids, vectors=vectors) for ids, vectors in moments),
    ]


def _measure(
    claim: Claim,
    library: Library,
    backbone: Backbone,
    task: TaskData,
    domain: str,
    segments: Sequence[SegmentEntry],
) -> AppendMeasurement:
    """Return the measurement of the append in the shard as it will be published with these segments."""
    if not any(clip.captions for clip in task.clips):
        return AppendMeasurement()
    manifest = library.manifest
    published = [entry for entry in manifest.segments(domain) if entry.count]
    shard = library.store.open([*published, *segments], library.store.tombstones(manifest, domain))
    return measure_append(library, backbone, task, domain, shard, claim.tick)


def _store_calibration(
    claim: Claim, library: Library, confidence: ConfidenceModel, *, is_published: bool
) -> None:
    """Store a confidence model before the publication, so that the first search of the new generation uses it.

    Args:
        claim: Claim on the append.
        library: Library that the model was fitted to.
        is_published: Whether the manifest already lists the append.
    """
    manifest = library.manifest
    with claim.transaction() as session:
        if manifest.release is not None and library.store.manifest().release == manifest.release:
            generation = manifest.generation if is_published else manifest.generation + 1
            store_calibration(session, claim.task.id, manifest.release, generation, confidence.to_json())


def _compact(library: Library, domain: str) -> None:
    """Copy the segments of a shard into one if they are too many. Failures are logged: searches do not need this."""
    try:
        if len(library.store.manifest().segments(domain)) > MAX_SEGMENTS:
            update_shard_rows(library.store.compact(domain), {domain}, "shard.compact")
    except (OSError, ShardStoreError, Unavailable) as error:
        log.warning("compaction_failed", task=domain, error=str(error))
