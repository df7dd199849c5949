"""The probing job: hash, decode and sample every video in a task, and reject the unusable ones.

The videos are split into chunks. The worker that claimed the task plans them, processes chunks like any other worker,
and completes the stage when all are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import structlog
from sqlalchemy import func, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from cinestrata_schemas.uris import redact_uri
from media import (
    DecoderUnavailable,
    MediaError,
    UndecidedVideo,
    VideoDecoder,
    VideoInfo,
    VideoLimits,
    content_hash,
)
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import frame_spec
from service.catalog.database import session_scope
from service.catalog.tables import Chunk, FileRemoval, Task, Video
from service.core import errors, request_limits
from service.core.settings import settings
from service.storage import library_files
from service.storage.library_backbone import backbone_of_task
from service.storage.library_files import local_video, require_writable
from service.storage.video_files import remove_deleted_files
from service.tasks import lifecycle
from service.tasks.file_texts import store_file_texts
from service.tasks.lifecycle.state_machine import SAME_CONTENT, reject
from service.tasks.probing_completion import complete_probing, isolate_failures, pending_videos

PROBE_CHUNK_VIDEOS = 64  # a kill loses at most one chunk's results
SAVE_SECONDS = 1.0  # between two transactions that store results of a chunk

_MAX_OUTAGES = 3  # videos of a chunk whose source is unavailable, before the others are postponed too
_MAX_FAILURES = 8  # consecutive chunks that end with an error, before the task fails
_TURN_SECONDS = 30.0  # that a worker spends on a task's chunks before the next message gets its turn
_WAIT_SECONDS = 0.25  # between checks whether other workers' chunks are done
_REPORT_SECONDS = 0.5

log = structlog.get_logger(__name__)


_Result = tuple[Video, VideoInfo | MediaError]  # the row is no longer in a session


class _SameContent(MediaError):
    """A video has the same content as an accepted one, which has the given URI."""

    def __init__(self, uri: str, digest: str) -> None:
        super().__init__(SAME_CONTENT + redact_uri(uri))
        self.content_hash = digest


def probe(claim: lifecycle.Claim) -> None:
    """Probe a claimed task's pending videos, then give the task back until its training is due.

    The task fails when more than ``MAX_BAD_SHARE`` of its videos are bad, when no video is left, or when the data
    folder cannot be written. An append merely rejects bad videos, and fails only if all of its videos are bad. Raises
    as ``Claim.progress``.
    """
    try:
        require_writable(settings().cache_dir, settings().thumbnails_dir)
        _probe_chunks(claim)
    except errors.DataFolderNotWritable as error:
        # A broken installation would otherwise reject every video of every task.
        remedy = Action(name="retry_task", id=claim.task.id)
        claim.fail(error.detail, f"{error.hint} Then retry the task.", remedy)
        return
    complete_probing(claim)


def probe_free_chunks(task_id: str, owner: str) -> None:
    """Probe free chunks of another worker's task; see :func:`process_free_chunks`."""

    def probe_chunks(chunks: Iterator[lifecycle.ChunkClaim]) -> None:
        lifecycle.send_due()
        require_writable(settings().cache_dir, settings().thumbnails_dir)
        spec = _frame_spec(task_id)
        with _open_decoder() as decoder:
            for chunk in chunks:
                _probe_chunk(chunk, decoder, spec)

    lifecycle.process_free_chunks(task_id, "probing", owner, _TURN_SECONDS, probe_chunks)


def _probe_chunks(claim: lifecycle.Claim) -> None:
    """Process the task's chunks until all are done."""
    task_id, spec = claim.task.id, _frame_spec(claim.task.id)
    total = _plan(claim)
    lifecycle.send_due()  # let other workers take chunks
    reported = 0.0

    def report(done: int | None = None) -> None:
        """Report how far all workers are, on behalf of the task's owner."""
        nonlocal reported
        if done is None and time.monotonic() - reported < _REPORT_SECONDS:
            claim.tick()
            return
        reported = time.monotonic()
        done = total - lifecycle.read_totals(task_id, "probing").remaining if done is None else done
        claim.progress("probing", done / max(total, 1), done=done, total=total)

    outages: list[errors.SourceUnavailable] = []  # in consecutive chunks
    failures = 0  # in consecutive chunks
    with _open_decoder() as decoder:
        while (totals := lifecycle.read_totals(task_id, "probing")).unfinished:
            report(total - totals.remaining)
            isolate_failures(claim)
            chunk = lifecycle.claim_chunk(task_id, "probing", claim.owner, owns_task=True)
            if chunk is None:
                if outages and not totals.claimed:
                    raise outages[0]
                time.sleep(_WAIT_SECONDS)  # other workers process the last chunks
                continue
            try:
                _probe_chunk(chunk, decoder, spec, report)
                outages.clear()
                failures = 0
            except errors.LeaseLost:
                claim.tick()  # raises if the task is lost too; a chunk lost alone is another worker's
            except errors.SourceUnavailable as error:  # videos in other chunks may have a different source
                outages.append(error)
                if isinstance(error, errors.DecoderOutage):
                    raise  # this worker can't process any chunk
                if len(outages) == _MAX_OUTAGES:  # until then, the first chunks' pauses have not ended
                    raise
            except (errors.CinestrataError, SQLAlchemyError):
                raise
            except Exception:
                failures += 1
                if failures == _MAX_FAILURES:  # this worker fails on every video
                    raise
                log.exception("chunk_failed", task=task_id, chunk=chunk.number)
    claim.progress("probing", 1.0, done=total, total=total)


def _frame_spec(task_id: str) -> FrameSpec:
    return frame_spec(backbone_of_task(task_id), settings().frames)


def _open_decoder() -> VideoDecoder:
    return VideoDecoder(VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES))


def _plan(claim: lifecycle.Claim) -> int:
    """Plan chunks for pending videos that no unfinished chunk covers; returns the total number of videos."""
    in_task = Video.task_id == claim.task.id
    with claim.transaction() as session:
        unfinished = select(Chunk.id).where(
            Chunk.task_id == claim.task.id,
            Chunk.stage == "probing",
            Chunk.done_at.is_(None),
            Video.vector_id.between(Chunk.first_id, Chunk.last_id),
        )
        pending = session.scalars(
            select(Video.vector_id)
            .where(in_task, Video.status == "pending", ~unfinished.exists())
            .order_by(Video.vector_id)
        ).all()
        lifecycle.plan_chunks(session, claim.task.id, "probing", pending, PROBE_CHUNK_VIDEOS)
        return session.scalar(select(func.count()).where(in_task)) or 0


def _probe_chunk(
    chunk: lifecycle.ChunkClaim,
    decoder: VideoDecoder,
    spec: FrameSpec,
    report: Callable[[], None] = lambda: None,
) -> None:
    """Probe a chunk's pending videos and store the results."""
    with chunk:
        with session_scope() as session:
            videos = pending_videos(session, chunk)
            target_id = session.scalar(select(Task.target_id).where(Task.id == chunk.task_id))
        results: list[_Result] = []
        outages: list[errors.SourceUnavailable] = []
        saved = time.monotonic()
        try:
            for video in videos:
                report()
                chunk.tick()
                try:
                    results.append(_probe_video(chunk, decoder, spec, video, target_id))
                except errors.SourceUnavailable as error:  # the video stays pending
                    outages.append(error)
                    if len(outages) == _MAX_OUTAGES or isinstance(error, errors.DecoderOutage):
                        break
                if time.monotonic() - saved > SAVE_SECONDS:
                    with chunk.transaction() as session:
                        _store_results(session, chunk, results)
                    results, saved = [], time.monotonic()
        except errors.WorkerStopping:
            with chunk.transaction() as session:
                _store_results(session, chunk, results)
            raise
        with chunk.transaction() as session:
            _store_results(session, chunk, results)
            if not outages:
                chunk.complete(session)
        remove_deleted_files()  # for videos deleted meanwhile
        if outages:
            raise outages[0]


def _probe_video(
    chunk: lifecycle.ChunkClaim, decoder: VideoDecoder, spec: FrameSpec, video: Video, target_id: str | None
) -> _Result:
    def find_copy(digest: str) -> str | None:
        """Find the URI of an accepted video with the same content, earlier in the task or anywhere in the domain.

        Copies whose results are not stored yet are found when the stage is completed.
        """
        earlier = (Video.task_id == chunk.task_id) & (Video.vector_id < video.vector_id)
        stored = earlier if target_id is None else or_(earlier, Video.task_id == target_id)
        with session_scope() as session:
            return session.scalars(
                select(Video.uri)
                .where(Video.content_hash == digest, Video.status == "accepted", stored)
                .order_by(Video.vector_id)
                .limit(1)
            ).one_or_none()

    try:
        with local_video(video.uri) as path:
            return video, _read_video(decoder, spec, video, path, find_copy)
    except MediaError as error:
        return video, error


def _read_video(
    decoder: VideoDecoder, spec: FrameSpec, video: Video, path: Path, find_copy: Callable[[str], str | None]
) -> VideoInfo:
    """Hash and decode a file; raise MediaError if it is unusable or a copy of an accepted video."""
    name = redact_uri(video.uri)
    try:
        decoder.limits.check_file(path, name)
        digest = content_hash(path)
    except FileNotFoundError:
        raise UndecidedVideo("The file no longer exists.") from None
    except OSError as error:
        raise UndecidedVideo(
            f"The file cannot be read ({error.strerror or type(error).__name__})."
        ) from error
    if (same := find_copy(digest)) is not None:
        raise _SameContent(same, digest)
    try:
        info = decoder.decode(
            path,
            frames=spec.frames,
            size=spec.size,
            name=name,
            thumbnail=library_files.thumbnail_path(video.id),
            cache=settings().cache_dir,
        )
    except DecoderUnavailable as error:
        raise errors.DecoderOutage(f"This worker's decoder can't be used: {error}.") from error
    except OSError as error:  # about the output: the decoder reports unreadable files as MediaError
        raise errors.DataFolderNotWritable(settings().data_dir, error) from error
    if info.content_hash != digest:
        raise UndecidedVideo("The file changed while it was read.")
    return info


def _store_results(session: Session, chunk: lifecycle.ChunkClaim, results: Sequence[_Result]) -> None:
    ids = [video.vector_id for video, _ in results]
    stored = session.scalars(select(Video).where(Video.vector_id.in_(ids), Video.task_id == chunk.task_id))
    rows = {row.vector_id: row for row in stored}
    for video, outcome in results:
        row = rows.get(video.vector_id)
        if isinstance(outcome, MediaError):
            if row is not None:  # otherwise deleted during decoding
                reject(
                    session,
                    row,
                    outcome.reason,
                    is_final=not isinstance(outcome, UndecidedVideo),
                    content_hash=outcome.content_hash if isinstance(outcome, _SameContent) else None,
                )
        elif row is None:  # deleted during decoding, which rewrote its files
            session.add(FileRemoval(video_id=video.id, uri=video.uri, content_hash=outcome.content_hash))
        else:
            for name, value in asdict(outcome).items():
                if name != "texts":
                    setattr(row, name, value)
            row.status, row.reason = "accepted", None
    carried = {video.vector_id: outcome.texts for video, outcome in results if isinstance(outcome, VideoInfo)}
    store_file_texts(
        session, chunk.task_id, {rows[key]: texts for key, texts in carried.items() if key in rows}
    )
    chunk.count_finished(session, len(results))
