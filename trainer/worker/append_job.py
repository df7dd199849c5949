"""Append job: the Celery task that embeds appended videos and publishes them as a segment of the domain's shard.

::

    claim ─▶ embedding with the pinned release ─▶ append segment ─▶ ready

Nothing is trained, and no existing index file changes. The process may be killed at any line and the job started again:
if the shard already has the vectors, only the catalog is completed.

Before an append is published, the drift of its videos from the domain is measured and the release calibrated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import structlog
from sqlalchemy import select

from cinestrata_schemas.choice_types import LEARNED_SPLITS
from cinestrata_schemas.tasks import Drift
from index.arrays import Ids
from index.errors import ShardStoreError
from index.files.manifest_format import SegmentEntry
from models.backbones.backbone import Backbone
from models.routing.confidence_model import ConfidenceModel
from service.catalog.database import session_scope
from service.catalog.domain_videos import store_calibration
from service.catalog.tables import Task, Video
from service.celery_worker import worker_name
from service.core.errors import CinestrataError, DomainChanged, Unavailable, UpgradeUnfinished
from service.library.deletion import delete_videos, update_shard_rows
from service.storage.index_manifest import index_lock
from service.tasks import lifecycle
from service.tasks.broker import APPEND, celery_app
from service.tasks.lifecycle import Claim, send_due
from service.tasks.lifecycle.publishing import shard_columns
from trainer.errors import LibraryDamaged, VectorIdsTaken
from trainer.evaluation.append_drift import measure_drift
from trainer.evaluation.gallery import Query
from trainer.published_library import Library
from trainer.release_calibration import fit_library_confidence
from trainer.task_data import TaskData, vector_ids
from trainer.video_embedding import embed_clips, group_segments
from trainer.worker.catalog_reader import (
    embed_task_moments,
    library_captions,
    load_task,
    remaining_videos,
    restarted_without_deleted_videos,
    restore_task_frames,
)
from trainer.worker.job_environment import clean_up, open_library, recorded_failure, task_backbone
from trainer.worker.shared_embedding import embed_shared

MIN_CAPTIONS = 10  # fewer hardly change a calibration, and as held-out captions hardly show a difference
_MIN_DRIFTED = 3  # appended captions; with fewer, a difference is usually chance
_MAX_CAPTIONS = 512
_MAX_ROWS = 8 * _MAX_CAPTIONS  # rows to read in search of videos with captions

log = structlog.get_logger(__name__)


class AppendMeasurement(NamedTuple):
    """An append's drift from its domain, and the release's confidence model with it; None with too few captions."""

    drift: Drift | None = None
    confidence: ConfidenceModel | None = None


def _domain_captions(domain: str, ids: Ids, splits: Sequence[str], append: str | None = None) -> list[Query]:
    """Read the first captions of a domain's videos in the given splits, among ``ids`` and up to a limit.

    The videos of an append count too, if one is given; then the newest come first.
    """
    chosen = (Video.task_id == domain) & Video.effective_split.in_(splits)
    if append is not None:
        chosen |= Video.task_id == append
    query = (
        select(Video.vector_id, Video.captions)
        .where(Video.status == "accepted", chosen)
        .order_by(Video.vector_id if append is None else Video.vector_id.desc())
        .limit(_MAX_ROWS)
    )
    with session_scope() as session:
        captioned = [Query(captions[0], video) for video, captions in session.execute(query) if captions]
    is_stored = np.isin(np.array([each.vector_id for each in captioned], np.int64), ids)
    return [captioned[row] for row in np.flatnonzero(is_stored)[:_MAX_CAPTIONS]]


_SAME_VECTOR = 0.99  # minimum cosine between two embeddings of a video, perhaps on different machines
MAX_SEGMENTS = 16  # per shard; with more, they are copied into one


@celery_app.task(name=APPEND, ignore_result=True)
def run_append_job(task_id: str) -> None:
    """Process an append if it is due, then send the messages for due tasks."""
    claim = lifecycle.claim_append(task_id, worker_name())
    if claim is not None:
        with claim, recorded_failure(claim):
            process_append(claim)
    send_due()


def process_append(claim: Claim) -> None:
    """Take a claimed append to the state ``ready``; raise LibraryDamaged if the domain's shard is missing or cannot be
    read, VectorIdsTaken if it uses some of the vector IDs for other videos, UpgradeUnfinished or DomainChanged if the
    append is due again later or at once, and the errors of ``Claim.progress``.
    """
    claim.progress("loading")
    library, domain = open_library(), claim.task.target_id or ""
    if domain not in library.manifest.shards:
        raise LibraryDamaged(f"the manifest lists no shard of task {domain}")
    _require_one_release(library, domain)
    backbone = task_backbone(claim.task.id)
    _require_one_release(library, domain)  # also when its backbone was read
    if domain in library.degraded:
        raise LibraryDamaged(f"the shard of task {domain} cannot be read: {library.degraded[domain]}")
    task = load_task(claim, backbone)
    ids = vector_ids(task.clips)
    claim.advance("indexing")
    segments: list[SegmentEntry] = []
    stored = library.store.stored_ids(domain, ids)
    if 0 < len(stored) < len(ids):
        _require_own_vectors(claim, library, backbone, task, stored)
        # A deletion was killed after its tombstones, and a compaction has dropped the vectors.
        missing = set(np.setdiff1d(ids, stored).tolist())
        delete_videos([clip.id for clip in task.clips if clip.vector_id in missing], task_id=claim.task.id)
        task = load_task(claim, backbone)
        ids = vector_ids(task.clips)
    if len(ids) and not len(stored):
        with restarted_without_deleted_videos(task):
            segments = _write_segments(claim, library, backbone, task, domain)
    claim.progress("measuring")
    library = open_library()  # releases and segments may have been replaced in the meantime
    _require_one_release(library, domain, segments)
    measured = _measure(claim, library, backbone, task, domain, segments)
    if measured.confidence is not None:
        _store_calibration(claim, library, domain, measured.confidence, is_published=not segments)
    with index_lock(claim.tick), claim.appending() as publication:
        _require_one_release(open_library(), domain, segments)
        # The transaction locks the append's row, so every later deletion finds the vectors published.
        remaining = {clip.vector_id for clip in remaining_videos(task).clips}
        deleted = [video for video in ids.tolist() if video not in remaining]
        originals = dict(publication.reassign_videos().originals)
        manifest = library.store.append(
            *segments,
            deleted=originals | {domain: [*deleted, *publication.rejected, *originals.get(domain, ())]},
            before_replace=publication.require_lock,
        )
        publication.complete(shard_columns(manifest.segments(domain)), drift=measured.drift)
    _compact(library, domain)
    clean_up(claim, task)


def _require_one_release(library: Library, domain: str, segments: Sequence[SegmentEntry] = ()) -> None:
    """Check that catalog, index and new segments agree about a domain's release; raise UpgradeUnfinished if only the
    index has its upgrade or undoing, or DomainChanged if it was upgraded since the segments were embedded.
    """
    release = library.manifest.shards[domain].release
    if any(segment.release != release for segment in segments):
        raise DomainChanged("The domain was upgraded; the append starts again with its new release.")
    with session_scope() as session:
        recorded = session.scalar(select(Task.release_id).where(Task.id == domain))
    if recorded != release:
        raise UpgradeUnfinished("The upgrade of the domain is not complete.")


def _require_own_vectors(
    claim: Claim, library: Library, backbone: Backbone, task: TaskData, stored: Ids
) -> None:
    """Check that ``stored`` vectors in a shard belong to an append's videos; raise VectorIdsTaken if they belong to
    others with the same IDs, which a restored catalog does not know.
    """
    domain = claim.task.target_id or ""
    manifest = library.manifest
    segments = [entry for entry in manifest.segments(domain) if entry.count]
    published = library.store.open(segments).vectors(stored)  # now: a compaction may replace the segments
    restore_task_frames(claim, task, backbone)
    fingerprint = manifest.shards[domain].fingerprint
    embedded = embed_shared(
        claim, task.clips, partial(embed_clips, library.video_encoder(backbone, domain)), fingerprint
    )
    videos = vector_ids(task.clips)
    pairs = published, embedded[np.isin(videos, stored)]
    cosines = np.einsum("nd,nd->n", *pairs, dtype=np.float64)
    if cosines.min() < _SAME_VECTOR:
        raise VectorIdsTaken(
            f"The shard of task {domain} already uses {len(stored)} of the append's {len(videos)} vector IDs for other "
            "videos"
        )


def _write_segments(
    claim: Claim, library: Library, backbone: Backbone, task: TaskData, domain: str
) -> list[SegmentEntry]:
    """Embed an append's videos and their moments into unpublished segments."""
    restore_task_frames(claim, task, backbone)
    encode = library.video_encoder(backbone, domain)
    pinned = library.manifest.shards[domain]
    vectors = embed_shared(claim, task.clips, partial(embed_clips, encode), pinned.fingerprint)
    claim.progress("writing")
    write = partial(
        library.store.write_shard, task=domain, release=pinned.release, fingerprint=pinned.fingerprint
    )
    moments = group_segments(embed_task_moments(claim, task, encode, backbone))
    return [
        write(ids=vector_ids(task.clips), vectors=vectors),
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
    """Compare how well the domain's encoder finds appended videos and the domain's, and calibrate the release again.

    The shard is the one that will be published with these segments. If measuring fails, the append does not, except for
    the errors of ``Claim.progress``.
    """
    if not any(clip.captions for clip in task.clips):
        return AppendMeasurement()
    state, manifest = library.release(library.newest_release(domain=domain)), library.manifest
    published = [entry for entry in manifest.segments(domain) if entry.count]
    shard = library.store.open([*published, *segments], library.store.tombstones(manifest, domain))
    try:
        # Captions of earlier appends count too: many small appends change a library as much as a large one.
        appended = _domain_captions(domain, shard.ids, ("appended",), append=task.task_id)
        if len(appended) < _MIN_DRIFTED:
            return AppendMeasurement()
        fold = library.fold(domain)
        held_out = _domain_captions(domain, shard.ids, ("fold",) if fold else ("test", "val"))
        if fold is not None:
            held_out = [query for query in held_out if fold.has_caption(query.vector_id, query.text)]
        if is_learned := len(held_out) < MIN_CAPTIONS:
            held_out, fold = _domain_captions(domain, shard.ids, ("test", "val", *LEARNED_SPLITS)), None
        encoder = library.query_encoder(backbone, state, {})
        claim.tick()
        drift = measure_drift(
            encoder,
            domain,
            shard,
            held_out,
            appended,
            is_learned=is_learned,
            fold=fold,
            report_alive=claim.tick,
        )
        if len(appended) < MIN_CAPTIONS:
            return AppendMeasurement(drift)
        confidence = fit_library_confidence(
            encoder,
            library,
            state,
            (domain, shard),
            library_captions(claim.task, domain, library.manifest.shards, task.task_id),
            report_alive=claim.tick,
        )
        return AppendMeasurement(drift, confidence)
    except CinestrataError:
        raise
    except Exception:
        log.exception("append_not_measured", task=task.task_id, domain=domain)
        return AppendMeasurement()


def _store_calibration(
    claim: Claim, library: Library, domain: str, confidence: ConfidenceModel, *, is_published: bool
) -> None:
    """Store a confidence model of a library before publishing, so that the first search in the new generation uses it.

    If the append ``is_published``, it is that of this generation.
    """
    manifest, release = library.manifest, library.newest_release(domain=domain)
    with claim.transaction() as session:
        if library.store.manifest().release == manifest.release:
            generation = manifest.generation if is_published else manifest.generation + 1
            store_calibration(session, claim.task.id, release, generation, confidence.to_json())


def _compact(library: Library, domain: str) -> None:
    """Copy a shard's segments into one if there are too many; failures are only logged, since search still works."""
    try:
        if len(library.store.manifest().segments(domain)) > MAX_SEGMENTS:
            update_shard_rows(library.store.compact(domain), {domain}, "shard.compact")
    except (OSError, ShardStoreError, Unavailable) as error:
        log.warning("compaction_failed", task=domain, error=str(error))
