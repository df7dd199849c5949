"""Append job: the Celery task that embeds the videos of an append and publishes them as a segment of a domain's shard.

::

    claim ─▶ embedding with the pinned release ─▶ append segment ─▶ ready

Nothing is trained, and no existing file of the index changes. The process may be killed at any line and the job started
again: an append whose vectors are in the shard is only completed in the catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import structlog

from index.errors import ShardStoreError
from index.files.manifest_format import SegmentEntry
from models.backbones.backbone import Backbone
from models.routing.confidence_model import ConfidenceModel
from service.catalog.calibration_rows import store_calibration
from service.celery_worker import worker_name
from service.core.errors import Unavailable
from service.library.compaction import update_shard_rows
from service.storage.index_lock import index_lock
from service.tasks import lifecycle
from service.tasks.broker import APPEND, celery_app
from service.tasks.lifecycle import Claim, send_due
from trainer.errors import LibraryDamaged, VectorIdsTaken
from trainer.moment_embedding import group_segments
from trainer.published_library import Library
from trainer.task_data import TaskData
from trainer.worker.append_measurement import AppendMeasurement, measure_append
from trainer.worker.catalog_reader import load_task, remaining_videos, restarted_without_deleted_videos
from trainer.worker.cleanup import clean_up
from trainer.worker.job_environment import open_library, recorded_failure, task_backbone
from trainer.worker.shared_embedding import embed_shared
from trainer.worker.video_decoding import embed_task_moments, restore_task_frames

MAX_SEGMENTS = 16  # of a shard; one more, and its segments are copied into one

log = structlog.get_logger(__name__)


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
        VectorIdsTaken: The shard of the domain has some of the ids already.
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
        # A generation that lists an append has a vector of each accepted video, so a compaction drops none of these.
        # Some of the ids can then only be those of videos that a restored catalog does not know.
        raise VectorIdsTaken(
            f"The shard of task {domain} has vectors of other videos with {len(stored)} of the {len(ids)} ids of this "
            "append"
        )
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
    """Measurement of the append in the shard as it will be published with these segments."""
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
