"""Learning job: the Celery task that learns, indexes, evaluates and publishes one domain, or upgrades one.

::

    claim ─▶ training ─▶ indexing ─▶ evaluating ─▶ publish ─▶ ready

The process may be killed at any line and the job started again: training resumes from its last checkpoint, releases
and shards are named by their content, and once the manifest has the task's shard, only the catalog is completed.

An upgrade learns the videos of a published domain again. Its shard takes the place of the domain's.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from functools import partial

import numpy as np
import structlog

from models.backbones.backbone import Backbone
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Release, Shard, Task
from service.celery_worker import worker_name
from service.core.errors import CinestrataError, Conflict
from service.core.settings import settings
from service.storage.index_manifest import index_lock
from service.tasks import lifecycle
from service.tasks.broker import LEARN, celery_app
from service.tasks.lifecycle import Claim, send_due, state_machine
from service.tasks.lifecycle.publishing import shard_columns
from trainer.errors import LibraryDamaged, NothingToLearn
from trainer.evaluation.gallery import RankSummary
from trainer.evaluation.recall_row import RecallRow
from trainer.methods import METHODS
from trainer.published_library import Library
from trainer.release_calibration import calibrate_release
from trainer.task_data import TaskData, vector_ids
from trainer.task_pipeline import (
    HeldOutVideos,
    IndexingStage,
    WrittenRelease,
    evaluate_release,
    index_task,
    prepare_method,
    train_task,
    zero_shot_recall,
)
from trainer.training_loop import TrainingProgress
from trainer.training_memory import peak_bytes, reset_peak
from trainer.video_embedding import group_segments
from trainer.worker.catalog_reader import (
    embed_task_moments,
    held_out_videos,
    library_captions,
    load_task,
    remaining_videos,
    restarted_without_deleted_videos,
    restore_task_frames,
    training_video_ids,
)
from trainer.worker.job_environment import (
    clean_up,
    open_library,
    recorded_failure,
    remove_other_checkpoints,
    task_backbone,
)
from trainer.worker.shared_embedding import embed_shared, write_encoder

log = structlog.get_logger(__name__)

# Bounds on the time and memory that a large domain takes; the settings of a task can change them.
_MAX_STEPS = 20_000
_MAX_VIDEOS = 20_000
_SMALL_DOMAIN = 10  # captioned training videos; fewer teach little besides their own captions


@celery_app.task(name=LEARN, ignore_result=True)
def run_learning_job(task_id: str) -> None:
    """Learn a task if it is due, then send the message for the next due task."""
    claim = lifecycle.claim_training(task_id, worker_name())
    if claim is not None:
        with claim, recorded_failure(claim):
            process_claim(claim)
    send_due()


def process_claim(claim: Claim) -> None:
    """Take a claimed task to the state ``ready``; errors as for ``Claim.progress``."""
    claim.progress("loading")
    backbone, library = task_backbone(claim.task.id), open_library()
    reset_peak(backbone.device)
    claim.report_memory(partial(peak_bytes, backbone.device))
    for damaged, reason in library.degraded.items():
        claim.log(f"The shard of task {damaged} cannot be read; learning continues without it. {reason}")
    task = load_task(claim, backbone)
    if claim.is_published():
        _complete_catalog(claim, backbone, library, task)
    elif not task.clips:
        raise NothingToLearn("All accepted videos of the task were deleted")
    else:
        with restarted_without_deleted_videos(task):
            _learn(claim, backbone, library, task)
    clean_up(claim, task)


def _learn(claim: Claim, backbone: Backbone, library: Library, task: TaskData) -> None:
    """Learn a task whose shard is not published yet."""
    method_settings = {"max_steps": _MAX_STEPS, "max_videos": _MAX_VIDEOS, **claim.task.settings}
    method = prepare_method(backbone, library, task, claim.task.method, method_settings)
    if library.lineages and not method.learned_tasks:
        claim.log(
            f"The domain starts another lineage: no release can be continued with method {method.name!r} on backbone "
            f"{backbone.name!r}. Searches encode each query for both."
        )
    claim.advance("training")
    whole, task = task, restore_task_frames(claim, task, backbone)
    if task.clips != whole.clips:
        _require_new_videos(claim, library, task)
        method = prepare_method(backbone, library, task, claim.task.method, method_settings)

    def report_training(progress: TrainingProgress) -> None:
        claim.progress(
            "training",
            progress.step / progress.steps,
            epoch=progress.epoch,
            epochs=progress.epochs,
            loss=progress.loss,
            videos_per_second=progress.videos_per_second,
        )

    # Other tasks' checkpoints are useless: they started from an older release, or their tasks will start from a newer
    # one. The claim is verified first, since a worker that lost its lease must not remove the next task's checkpoints.
    with claim.transaction():
        remove_other_checkpoints(claim.task.id)
    trained = train_task(
        method,
        library,
        task,
        training_video_ids,
        checkpoints=settings().checkpoints_dir / claim.task.id,
        fencing_token=claim.token,
        report=report_training,
        processes=settings().training_processes,
    )
    count = sum(bool(clip.captions) for clip in task.train)
    if trained and count < _SMALL_DOMAIN:
        videos = "1 captioned video" if count == 1 else f"{count} captioned videos"
        claim.log(
            f"Learned from {videos}; in so small a domain, videos are found mainly by the words of these captions and "
            "by the backbone. More captioned videos improve the search."
        )
    if method.micro_batch:
        claim.log(
            f"Memory was too small for whole batches, so training used parts of {method.micro_batch} videos, with the "
            "same loss but more slowly."
        )
    claim.advance("indexing")
    learned, task = task, remaining_videos(task)
    if not task.clips:
        raise NothingToLearn("All accepted videos of the task were deleted")
    total = len(task.clips)
    # An upgrade has learned the appended videos of its domain.
    others = library.manifest.shards.keys() - {task.task_id}
    captions = library_captions(claim.task, task.task_id, others)

    def report_indexing(stage: IndexingStage, done: int) -> None:
        if stage == "indexing":
            claim.progress(stage, done / total, done=done, total=total)
        else:
            claim.progress(stage)

    written = index_task(
        method,
        library,
        task,
        calibrate=lambda encoder, state, vectors: calibrate_release(
            method, learned, encoder, library, state, vectors, captions, report_alive=claim.tick
        ),
        moments=group_segments(embed_task_moments(claim, task, method.encode_videos, backbone)),
        embed=lambda: embed_shared(
            claim, task.clips, method.embed_videos, method.fingerprint(), write_encoder(method.release())
        ),
        report=report_indexing,
        report_alive=claim.tick,
    )
    claim.advance("evaluating")
    recalls = evaluate_task(claim, backbone, library, written, task)
    left = {clip.vector_id for clip in whole.clips} - {clip.vector_id for clip in learned.clips}
    publish_task(claim, library, task, written, recalls, left=left, trained=trained)


def _require_new_videos(claim: Claim, library: Library, task: TaskData) -> None:
    """Check that a partial upgrade changes something; raise NothingToLearn."""
    if not task.clips:
        raise NothingToLearn("No video of the domain can be read")
    with session_scope() as session:
        domain = session.get_one(Task, task.task_id)
    is_same = (claim.task.backbone, claim.task.method) == (domain.backbone, domain.method)
    shard = library.shard(task.task_id) if is_same else None
    if shard is not None and np.isin(vector_ids(task.clips), shard.ids).all():
        raise NothingToLearn("No further video of the domain can be read")


def _complete_catalog(claim: Claim, backbone: Backbone, library: Library, task: TaskData) -> None:
    """Complete the catalog for a task whose worker stopped after it had published the shard."""
    shard, *moments = library.manifest.segments(task.task_id)
    release = library.manifest.releases[shard.release]
    written = WrittenRelease(library.release(shard.release), release, shard, None, tuple(moments))
    recalls: list[tuple[str, Recall]] = []
    left = set[int]()
    if claim.task.partial:
        stored = set(library.store.segment_ids(shard).tolist())
        left = {clip.vector_id for clip in task.clips} - stored
        task = replace(task, clips=tuple(clip for clip in task.clips if clip.vector_id in stored))
    evaluation_error: str | None = None
    claim.advance("evaluating")
    # A published task becomes ready even without figures: the last attempt skips the evaluation, in case it was what
    # ended the worker each time.
    if claim.task.attempts >= state_machine.MAX_ATTEMPTS:
        evaluation_error = "The worker stopped several times before it was done, without a message."
    else:
        try:
            vectors = library.shard(task.task_id)
            if vectors is None:
                raise LibraryDamaged("The shard cannot be read.")
            restore_task_frames(claim, task, backbone)
            written = replace(written, vectors=vectors)
            recalls = evaluate_task(claim, backbone, library, written, task)
        except CinestrataError:
            raise
        except Exception as error:
            evaluation_error = str(error)
    if evaluation_error:
        claim.log(f"The task could not be measured: {evaluation_error}")
    trained = METHODS[written.state.method].is_trainable and bool(task.pairs)
    publish_task(
        claim, library, task, written, recalls, left=left, trained=trained, evaluation_error=evaluation_error
    )


def publish_task(
    claim: Claim,
    library: Library,
    task: TaskData,
    written: WrittenRelease,
    recalls: list[tuple[str, Recall]],
    *,
    left: Set[int] = frozenset(),
    trained: bool,
    evaluation_error: str | None = None,
) -> None:
    """Publish release and shard in the manifest, and record both in the catalog.

    Videos of the shard that were deleted since are published as tombstones; ``left`` are those that a partial upgrade
    could not read.
    """
    state, release, shard = written.state, written.release, written.shard
    with index_lock(claim.tick), claim.publishing() as publication:
        # The transaction locks the task's row, so every later deletion finds the shard published.
        remaining = {clip.vector_id for clip in remaining_videos(task).clips}
        deleted = [clip.vector_id for clip in task.clips if clip.vector_id not in remaining]
        reassignment = publication.reassign_videos()
        publication.require_videos([*left, *(clip.vector_id for clip in task.clips)])
        if claim.task.upgrades and library.store.manifest().pinned is not None:
            raise Conflict("An earlier release is served, which could not search the upgraded domain.")
        library.store.publish(
            release=release,
            shards=[shard],
            segments=written.moments,
            deleted=[*deleted, *reassignment.orphans],
            replaced=next(iter(reassignment.originals.items()), None),
            upgrades=claim.task.upgrades,
            partial=claim.task.partial,
            training=written.training,
            outdated=library.outdated_releases(state),
            before_replace=publication.require_lock,
        )
        publication.complete(
            release=Release(
                id=release.id,
                method=state.method,
                backbone=state.backbone,
                kind=state.kind,
                fingerprint=state.fingerprint,
                bytes=release.bytes,
                metrics={"calibration_error": state.confidence.error} if state.confidence else {},
            ),
            shard=Shard(**shard_columns([shard, *written.moments])),
            recalls=recalls,
            trained=trained,
            moved=len(remaining),
            unmeasured=evaluation_error,
        )


def evaluate_task(
    claim: Claim, backbone: Backbone, library: Library, written: WrittenRelease, task: TaskData
) -> list[tuple[str, Recall]]:
    """Measure the release's cells of the recall matrix, each with its task's ID."""
    held_out = held_out_videos(task.task_id)
    of_task = held_out.get(task.task_id, HeldOutVideos.from_captions([])).measured_by(written.state.fold)
    total = max(len(of_task.ids), 1)
    zero_shot = None
    if not claim.task.upgrades:  # the matrix keeps the backbone that the domain was added with
        zero_shot = zero_shot_recall(
            backbone,
            task.clips,
            of_task,
            report=lambda done: claim.progress("baseline", done / total, done=done, total=total),
        )
    claim.progress("evaluating")
    row = evaluate_release(
        backbone, library, written, held_out, report=lambda share: claim.progress("evaluating", share)
    )
    return list(_matrix_cells(row, task.task_id, zero_shot))


def _matrix_cells(
    row: RecallRow, task_id: str, zero_shot: RankSummary | None
) -> Iterator[tuple[str, Recall]]:
    for task, figures in row.tasks.items():
        for gallery, recall in figures.recalls.items():
            cell = Recall(
                mode=row.mode,
                gallery=gallery,
                routing1=figures.routing if gallery == "global" else None,
                query_set=figures.query_set,
                first_hits=figures.first_hits[gallery],
                **vars(recall),
            )
            yield task, cell
    if zero_shot is not None:
        yield task_id, Recall(release_order=0, mode=row.mode, gallery="local", **vars(zero_shot))
