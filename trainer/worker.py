"""The learning job: the one file that ties the trainer to Celery and the catalog.

::

    claim ─▶ training ─▶ indexing ─▶ evaluating ─▶ publish ─▶ ready

It may be killed at any line and run again: training goes on from its last checkpoint, releases and shards are
named by their content, and a task whose shard the manifest shows already is only finished.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import structlog
import torch
from sqlalchemy import select

from index import ReleaseEntry, ShardEntry, ShardStore, ShardStoreError
from media import Limits, frame_cache_path, windows
from models.backbones.loading import Backbone, load_backbone
from models.backbones.precision import compute_device
from models.releases.release_files import ReleaseState
from service.catalog.database import session_scope
from service.catalog.moment_rows import drop_moments, set_moments
from service.catalog.tables import Task, Video
from service.celery_worker import send_due, worker_name
from service.core.errors import CinestrataError, VideosDeleted
from service.core.settings import settings
from service.storage import library_paths
from service.storage.vector_store_selection import library_store
from service.tasks import lifecycle
from service.tasks.broker import LEARN, celery_app
from service.tasks.lifecycle import Claim, RecallFacts, ReleaseFacts, ShardFacts
from trainer.errors import FramesMissing, LibraryDamaged, NothingToLearn, TrainingDiverged
from trainer.evaluation.confidence_fitting import CAPTIONS
from trainer.evaluation.rank_ledger import Ledger, read_ledger, write_ledger
from trainer.evaluation.recall_row import Row
from trainer.evaluation.retrieval_metrics import Recall
from trainer.failure_messages import in_words
from trainer.frame_restoration import restore_frames
from trainer.methods import METHODS, Method
from trainer.moment_embedding import LongVideo, embed_moments, segments
from trainer.published_library import Library
from trainer.steps import HeldOut, Laid, calibrate, lay_down, learn, measure, prepare, zero_shot_recall
from trainer.task_data import Clip, TaskData
from trainer.training_loop import Progress

__all__ = ["learn_task", "work_on"]

log = structlog.get_logger(__name__)

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


@celery_app.task(name=LEARN, ignore_result=True)
def learn_task(task_id: str) -> None:
    """Learn a task, if it is its turn, then wake whoever takes the next one."""
    claim = lifecycle.claim(task_id, worker_name())
    if claim is not None:
        with claim, _in_words(claim):
            work_on(claim)
    send_due()


def work_on(claim: Claim) -> None:
    """Everything from the claim to ``ready``.

    Raises:
        LeaseLost, TaskCancelled, WorkerStopping: see ``Claim.progress``.
    """
    claim.progress("loading")
    backbone = _backbone(settings().backbone, settings().frames, settings().torch_threads)
    backbone.query_precision = settings().query_precision  # what is measured must be what is served
    library = Library(library_store(settings()))
    library_paths.require_found(library.manifest)
    for damaged, reason in library.degraded.items():
        claim.log(f"The shard of task {damaged} cannot be read; learning goes on without it. {reason}")
    task = _load_task(claim, backbone)
    if claim.task.id in library.manifest.shards:
        _finish(claim, backbone, library, task)
    elif not task.clips:
        raise NothingToLearn("All accepted videos of the task were deleted")
    else:
        try:
            _learn(claim, backbone, library, task)
        except FramesMissing as error:
            if len(_left(task).clips) < len(task.clips):
                raise VideosDeleted(
                    "Videos of the task were deleted; it begins again without them."
                ) from error
            raise
    _tidy(library.store, task.task_id)


def _learn(claim: Claim, backbone: Backbone, library: Library, task: TaskData) -> None:
    """The usual way through."""
    method = prepare(backbone, library, task, claim.task.method, claim.task.settings)
    claim.advance("training")
    _restore_frames(claim, task, backbone)

    def report(at: Progress) -> None:
        claim.progress(
            "training",
            at.step / at.steps,
            epoch=at.epoch,
            epochs=at.epochs,
            loss=at.loss,
            videos_per_second=at.videos_per_second,
            eta_seconds=at.eta_seconds,
        )

    # Those of other tasks belong to an older release, or to tasks that will begin from a newer one. Whose turn it is no
    # more must not drop what the next task has saved.
    with claim.writing():
        _drop_checkpoints(keep=task.task_id)
    trained = learn(
        method,
        library,
        task,
        _training_ids(library),
        checkpoints=settings().checkpoints_dir / task.task_id,
        claim=claim.token,
        report=report,
    )
    claim.advance("indexing")
    task = _left(task)
    if not task.clips:
        raise NothingToLearn("All accepted videos of the task were deleted")
    total = len(task.clips)
    held_out, captions = _held_out(task.task_id), _calibrating(task.task_id)

    def embedded(done: int) -> None:
        claim.progress("indexing", done / total, done=done, total=total)

    laid = lay_down(
        method,
        library,
        task,
        calibrate=lambda encoder, state, vectors: calibrate(
            encoder,
            library,
            state,
            vectors,
            held_out,
            captions,
            prior=settings().routing_prior,
            mode=settings().served_mode,
            working=lambda: embedded(total),  # a lease lasts only while something is reported
        ),
        mode=settings().served_mode,
        moments=segments(_moments(claim, method, backbone)),
        report=embedded,
    )
    claim.advance("evaluating")
    recalls, ledger = _facts(claim, backbone, library, laid, task)
    _publish(
        claim,
        library,
        task,
        laid.state,
        laid.release,
        laid.shard,
        recalls,
        moments=laid.moments,
        trained=trained,
    )
    _keep(library, ledger)


def _finish(claim: Claim, backbone: Backbone, library: Library, task: TaskData) -> None:
    """The manifest shows the shard, and the worker died before the catalog did: only the rows are missing."""
    shard = library.manifest.shards[task.task_id]
    release = library.manifest.releases[shard.release]
    state = library.release(shard.release)
    recalls: list[RecallFacts] = []
    ledger: Ledger | None = None
    unmeasured: str | None = None
    claim.advance("evaluating")
    # What is laid down is ready, measured or not: where every attempt to measure it ends the worker, the last does not
    # try.
    if claim.task.attempts >= settings().max_attempts:
        unmeasured = "Its worker stopped again and again before that was done, without a message."
    else:
        try:
            vectors = library.shard(task.task_id)
            if vectors is None:
                raise LibraryDamaged("Its shard cannot be read.")
            _restore_frames(claim, task, backbone)
            recalls, ledger = _facts(claim, backbone, library, Laid(state, release, shard, vectors), task)
        except CinestrataError:
            raise
        except Exception as error:
            unmeasured = str(error)
    if unmeasured:
        claim.log(f"The task could not be measured: {unmeasured}")
    trained = METHODS[state.method].is_trainable and bool(task.pairs)
    moments = library.manifest.parts(task.task_id)[1:]
    _publish(
        claim,
        library,
        task,
        state,
        release,
        shard,
        recalls,
        moments=moments,
        trained=trained,
        unmeasured=unmeasured,
    )
    if ledger is not None:
        _keep(library, ledger)


def _publish(
    claim: Claim,
    library: Library,
    task: TaskData,
    state: ReleaseState,
    release: ReleaseEntry,
    shard: ShardEntry,
    recalls: list[RecallFacts],
    *,
    moments: Sequence[ShardEntry],
    trained: bool,
    unmeasured: str | None = None,
) -> None:
    with claim.publishing() as publication:
        # The task's row is held: whoever deletes from now on finds the shard published.
        left = {clip.vector_id for clip in _left(task).clips}
        gone = [clip.vector_id for clip in task.clips if clip.vector_id not in left]
        library.store.publish(release=release, shards=[shard], segments=moments, deleted=gone)
        publication.complete(
            release=ReleaseFacts(
                id=release.id,
                method=state.method,
                backbone=state.backbone,
                kind=state.kind,
                fingerprint=state.fingerprint,
                bytes=release.bytes,
                metrics={"calibration_error": state.confidence.error} if state.confidence else {},
            ),
            shard=ShardFacts(
                id=shard.id,
                release=shard.release,
                fingerprint=shard.fingerprint,
                count=sum(part.count for part in (shard, *moments)),
                dim=shard.dim,
                bytes=sum(part.bytes for part in (shard, *moments)),
            ),
            recalls=recalls,
            trained=trained,
            unmeasured=unmeasured,
        )


# -- what the catalog knows ---------------------------------------------------------------------------------


def _load_task(claim: Claim, backbone: Backbone) -> TaskData:
    frames, size = backbone.spec
    with session_scope() as session:
        videos = session.scalars(
            select(Video)
            .where(Video.task_id == claim.task.id, Video.status == "accepted")
            .order_by(Video.vector_id)
        ).all()
    clips = tuple(
        Clip(
            id=video.id,
            vector_id=video.vector_id,
            frames_path=frame_cache_path(settings().cache_dir, frames, size, video.content_hash or ""),
            captions=tuple(video.captions),
            split=video.effective_split,  # type: ignore[arg-type]
        )
        for video in videos
    )
    return TaskData(claim.task.id, claim.task.name, clips)


def _left(task: TaskData) -> TaskData:
    """A task without the videos that were deleted since it was loaded."""
    with session_scope() as session:
        left = set(session.scalars(select(Video.vector_id).where(Video.task_id == task.task_id)))
    return TaskData(task.task_id, task.name, tuple(clip for clip in task.clips if clip.vector_id in left))


def _training_ids(library: Library) -> dict[str, Ids]:
    """By task: vector ids of the training videos of every task that is laid down."""
    query = select(Video.task_id, Video.vector_id).where(
        Video.status == "accepted",
        Video.effective_split == "train",
        Video.task_id.in_(library.manifest.shards),
    )
    found: dict[str, list[int]] = {}
    with session_scope() as session:
        for task, vector_id in session.execute(query.order_by(Video.vector_id)):
            found.setdefault(task, []).append(vector_id)
    return {task: np.array(ids, np.int64) for task, ids in found.items()}


def _captioned(task_id: str, split: str) -> list[tuple[str, int, list[str]]]:
    """Task, vector id and captions of a split's videos: a task's, and those of all that are known as learned before."""
    query = (
        select(Video.task_id, Video.vector_id, Video.captions)
        .join(Task)
        .where(
            Video.status == "accepted",
            Video.effective_split == split,
            Task.learned_order.is_not(None) | (Task.id == task_id),
        )
        .order_by(Video.vector_id)
    )
    with session_scope() as session:
        return [(task, vector_id, captions) for task, vector_id, captions in session.execute(query)]


def _held_out(task_id: str) -> dict[str, HeldOut]:
    """By task: the held-out videos."""
    found: dict[str, list[tuple[int, list[str]]]] = {}
    for task, vector_id, captions in _captioned(task_id, "test"):
        found.setdefault(task, []).append((vector_id, captions))
    return {task: HeldOut.of(videos) for task, videos in found.items()}


def _calibrating(task_id: str) -> dict[str, list[tuple[int, str]]]:
    """By task: captions of videos that are neither trained on nor held out, a sample over all tasks."""
    videos = _captioned(task_id, "val")
    listed = [(task, vector_id, text) for task, vector_id, captions in videos for text in captions]
    chosen = np.random.default_rng(0).permutation(len(listed))[:CAPTIONS]
    found: dict[str, list[tuple[int, str]]] = {}
    for number in np.sort(chosen):
        task, vector_id, text = listed[number]
        found.setdefault(task, []).append((vector_id, text))
    return found


def _restore_frames(claim: Claim, task: TaskData, backbone: Backbone) -> None:
    with session_scope() as session:
        query = select(Video.id, Video.uri).where(Video.task_id == task.task_id)
        uris = {video: uri for video, uri in session.execute(query)}
    restore_frames(
        [clip for clip in task.clips if clip.id in uris],
        *backbone.spec,
        cache=settings().cache_dir,
        locate=lambda clip: library_paths.locate(uris[clip.id]),
        limits=Limits(max_bytes=settings().max_video_bytes),
        report=lambda done, total: claim.progress("decoding", done / total, done=done, total=total),
    )


def _moments(claim: Claim, method: Method, backbone: Backbone) -> Iterator[tuple[Ids, Vectors]]:
    """Settle which moments the task's videos have, and embed them.

    An attempt replaces all that one before it settled, so what the catalog knows is what is published.
    """
    videos = _long_videos(claim)
    uris = {video.vector_id: uri for video, uri in videos}
    total = sum(len(video.spans) for video, _ in videos)

    def left_out(video: LongVideo, reason: str) -> None:
        with claim.writing() as session:
            drop_moments(session, video.vector_id)
            if session.get(Video, video.vector_id) is None:  # deleted meanwhile, so nothing names it any more
                return
        said = f"Video {video.id!r} is found as a whole only, not by its moments: {reason}"
        claim.log(said, video_id=video.id)

    if videos:
        yield from embed_moments(
            method.encode_videos,
            [video for video, _ in videos],
            *backbone.spec,
            locate=lambda video: library_paths.locate(uris[video.vector_id]),
            # Of this claim alone: one that lost its lease may still be writing, and removes its own in the end.
            scratch=settings().checkpoints_dir / claim.task.id / f"moments-{claim.token}.npy",
            limits=Limits(max_bytes=settings().max_video_bytes),
            left_out=left_out,
            report=lambda done: claim.progress("moments", done / total, done=done, total=total),
        )


def _long_videos(claim: Claim) -> list[tuple[LongVideo, str]]:
    """The accepted videos that have moments, by vector id, each with its URI; the catalog learns of their moments."""
    query = (
        select(Video.id, Video.vector_id, Video.content_hash, Video.duration, Video.uri)
        .where(
            Video.task_id == claim.task.id,
            Video.status == "accepted",
            Video.duration > settings().moment_seconds,
        )
        .order_by(Video.vector_id)
    )
    length, overlap, most = settings().moment_seconds, settings().moment_overlap, settings().max_moments
    found: list[tuple[LongVideo, str]] = []
    with claim.writing() as session:
        for name, vector_id, content, duration, uri in session.execute(query):
            spans = windows(duration or 0.0, length, overlap, most)
            if spans:
                found.append((LongVideo(name, vector_id, content or "", tuple(spans)), uri))
        set_moments(session, claim.task.id, {video.vector_id: video.spans for video, _ in found})
    return found


# -- what the release is worth ------------------------------------------------------------------------------


def _facts(
    claim: Claim, backbone: Backbone, library: Library, laid: Laid, task: TaskData
) -> tuple[list[RecallFacts], Ledger]:
    """The cells of the recall matrix, and what the next task's row goes on from."""
    held_out = _held_out(task.task_id)
    own = held_out.get(task.task_id, HeldOut.of([]))
    zero_shot = zero_shot_recall(
        backbone, task.clips, own, report=lambda done: claim.progress("evaluating", done=done)
    )
    ledger = read_ledger(library_paths.ledger())
    row = measure(
        backbone,
        library,
        laid,
        held_out,
        prior=settings().routing_prior,
        modes=_measured,
        ledger=ledger,
        report=lambda share: claim.progress("evaluating", share),
    )
    return list(_rows(row, task.task_id, zero_shot)), ledger


def _measured(offered: Sequence[str]) -> Sequence[str]:
    """Query modes to measure a release in. The dashboard offers those that there are figures for."""
    return offered if settings().measured_modes == "all" else [settings().served_mode(offered)]


def _rows(row: Row, task_id: str, zero_shot: Recall | None) -> Iterator[RecallFacts]:
    for mode, galleries in row.recalls.items():
        for gallery, recalls in galleries.items():
            for task, recall in recalls.items():
                if recall is not None:
                    routing = row.routing[task] if gallery == "global" else None
                    yield RecallFacts(task, mode, gallery, **vars(recall), routing1=routing)  # type: ignore[arg-type]
        if zero_shot is not None:
            yield RecallFacts(task_id, mode, "local", **vars(zero_shot), zero_shot=True)  # type: ignore[arg-type]


# -- housekeeping -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _backbone(name: str, frames: int | None, threads: int | None) -> Backbone:
    if threads:
        torch.set_num_threads(threads)
    return load_backbone(name, frames).to(compute_device("auto"))


def _keep(library: Library, ledger: Ledger) -> None:
    """Only what is published: the ledger of a task that failed after all would fit no later row.

    One in which a video counts that was deleted meanwhile would fit none either, and keep what was made of its caption.
    Whoever deletes marks the index first and removes the ledger then, so marks are looked for once it is written. They
    are gone again where the task was compacted, which has another shard then.
    """
    before = library.manifest
    try:
        write_ledger(library_paths.ledger(), ledger)
        after = library.store.manifest()
        same = all(after.parts(task) == before.parts(task) for task in before.shards)
        if not same or after.tombstones != before.tombstones:
            library_paths.ledger().unlink(missing_ok=True)
    except (OSError, ShardStoreError) as error:
        log.warning("the next task will be measured afresh", error=str(error))


def _tidy(store: ShardStore, task_id: str) -> None:
    """Nothing depends on it, so nothing that goes wrong with it matters."""
    try:
        _drop_checkpoints(drop=task_id)
        store.sweep()
    except (OSError, ShardStoreError) as error:
        log.warning("not tidied up", task=task_id, error=str(error))


def _drop_checkpoints(keep: str | None = None, drop: str | None = None) -> None:
    """Remove the checkpoints of one task, or of all but one."""
    folder = settings().checkpoints_dir
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name == drop or (drop is None and path.name != keep):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _in_words(claim: Claim) -> Iterator[None]:
    """End the task with a reason and a hint where they are known; leave the rest to the claim."""
    try:
        yield
    except CinestrataError:
        raise
    except Exception as error:
        words = in_words(error, f"POST /tasks/{claim.task.id}/retry")
        if words is None:
            raise
        log.warning("task failed", task=claim.task.id, exc_info=error)
        if isinstance(error, TrainingDiverged):  # from its checkpoint it would only diverge again
            with claim.writing():
                _drop_checkpoints(drop=claim.task.id)
        claim.fail(*words)
