"""The probing job: hash, decode and sample every video of a task, and reject those that cannot be used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from media import MediaError, VideoDecoder, VideoInfo, VideoLimits, content_hash, frame_cache_path
from media.sources.source_uris import redact_uri
from models.backbones.backbone_loading import FrameSpec, frame_spec
from service.catalog.tables import Task, Video
from service.catalog.video_counts import count_task_videos
from service.core import request_limits
from service.core.errors import DataFolderNotWritable, SourceUnavailable
from service.core.settings import settings
from service.storage import library_paths
from service.storage.data_folder import require_writable
from service.storage.library_backbone import library_backbone
from service.storage.video_access import local_video
from service.storage.video_files import delete_video_files
from service.tasks.dataset_splits import SplitCandidate, assign_splits
from service.tasks.lifecycle import Claim
from service.tasks.rejection_reasons import SAME_CONTENT
from service.tasks.task_events import record

__all__ = ["probe"]

_MAX_OUTAGES = 3  # videos whose source is unavailable, until the rest of the task is postponed, too


@dataclass(frozen=True)
class _PendingVideo:
    vector_id: int
    id: str
    uri: str


def probe(claim: Claim) -> None:
    """Probe the pending videos of a claimed task, then give the task back until its training is due.

    The task fails when more than ``settings.bad_video_share`` of its videos are bad, when no video is left, or when the
    data folder cannot be written. An append rejects bad videos, and fails only if all of its videos are bad.

    Raises:
        LeaseLost, TaskCancelled, WorkerStopping: see ``Claim.progress``.
    """
    try:
        require_writable(settings().cache_dir, settings().thumbnails_dir)
        _probe_videos(claim)
    except DataFolderNotWritable as error:
        # Every video of every task would be rejected for a fault of the installation.
        claim.fail(error.detail, f"{error.hint} Then POST /tasks/{claim.task.id}/retry.")
        return
    _finish(claim)


def _probe_videos(claim: Claim) -> None:
    spec = frame_spec(library_backbone(), settings().frames)
    pending, hashes, total = _load_videos(claim, spec)
    done, started = total - len(pending), time.monotonic()
    outages: list[SourceUnavailable] = []
    with VideoDecoder(VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES)) as decoder:
        for number, video in enumerate(pending):
            elapsed = time.monotonic() - started
            claim.progress(
                "probing",
                (done + number) / total,
                done=done + number,
                total=total,
                videos_per_second=number / elapsed if number else None,
                eta_seconds=elapsed / number * (len(pending) - number) if number else None,
            )
            try:
                _probe_video(claim, decoder, spec, video, hashes)
            except SourceUnavailable as error:  # the video stays pending; others may have another source
                outages.append(error)
                if len(outages) == _MAX_OUTAGES:
                    raise
    if outages:
        raise outages[0]
    claim.progress("probing", 1.0, done=total, total=total)


def _load_videos(claim: Claim, spec: FrameSpec) -> tuple[list[_PendingVideo], dict[str, str], int]:
    """Load the pending videos, the URIs of accepted videos by content hash, and the number of all videos.

    An accepted video without its frame cache is pending again.
    """
    with claim.transaction() as session:
        videos = session.scalars(
            select(Video).where(Video.task_id == claim.task.id).order_by(Video.vector_id)
        ).all()
        for video in videos:
            if video.status == "accepted" and video.content_hash:
                cache = frame_cache_path(settings().cache_dir, spec.frames, spec.size, video.content_hash)
                if not cache.exists():
                    video.status = "pending"
        pending = [_PendingVideo(v.vector_id, v.id, v.uri) for v in videos if v.status == "pending"]
        hashes = {v.content_hash: v.uri for v in videos if v.status == "accepted" and v.content_hash}
        if claim.task.target_id is not None:
            stored = session.execute(
                select(Video.content_hash, Video.uri).where(
                    Video.task_id == claim.task.target_id, Video.status == "accepted"
                )
            )
            hashes |= {digest: uri for digest, uri in stored if digest}
    return pending, hashes, len(videos)


def _probe_video(
    claim: Claim, decoder: VideoDecoder, spec: FrameSpec, video: _PendingVideo, hashes: dict[str, str]
) -> None:
    try:
        with local_video(video.uri) as path:
            info = _read_video(decoder, spec, video, path, hashes)
    except MediaError as error:
        _reject(claim, video, error.reason)
        return
    _accept(claim, video, info)
    hashes[info.content_hash] = video.uri


def _read_video(
    decoder: VideoDecoder, spec: FrameSpec, video: _PendingVideo, path: Path, hashes: dict[str, str]
) -> VideoInfo:
    """Hash and decode a file; raises MediaError if it cannot be used, or if an accepted video has the same content."""
    try:
        decoder.limits.check_file(path, redact_uri(video.uri))
        digest = content_hash(path)
    except FileNotFoundError as error:
        raise MediaError("The file does not exist any more.") from error
    except OSError as error:
        raise MediaError(f"The file cannot be read ({error.strerror or type(error).__name__}).") from error
    if digest in hashes:
        raise MediaError(SAME_CONTENT + redact_uri(hashes[digest]))
    info = _decode(decoder, spec, path, video)
    if info.content_hash != digest:
        raise MediaError("The file changed while it was read.")
    return info


def _decode(decoder: VideoDecoder, spec: FrameSpec, path: Path, video: _PendingVideo) -> VideoInfo:
    try:
        return decoder.decode(
            path,
            frames=spec.frames,
            size=spec.size,
            name=redact_uri(video.uri),
            thumbnail=library_paths.thumbnail_path(video.id),
            cache=settings().cache_dir,
        )
    except OSError as error:  # the decoder reports unreadable files as MediaError: this is about its output
        raise DataFolderNotWritable(settings().data_dir, error) from error


def _accept(claim: Claim, video: _PendingVideo, info: VideoInfo) -> None:
    with claim.transaction() as session:
        row = session.get(Video, video.vector_id)
        if row is None:  # deleted during decoding, which has written its files again
            delete_video_files(session, [(video.id, video.uri, info.content_hash)])
            return
        row.status, row.reason = "accepted", None
        row.content_hash, row.bytes = info.content_hash, info.bytes
        row.container, row.codec = info.container, info.codec
        row.width, row.height = info.width, info.height
        row.fps, row.duration, row.frames = info.fps, info.duration, info.frames


def _reject(claim: Claim, video: _PendingVideo, reason: str) -> None:
    with claim.transaction() as session:
        row = session.get(Video, video.vector_id)
        if row is None:  # deleted during decoding
            return
        row.status, row.reason, row.content_hash = "rejected", reason, None
        record(
            session,
            claim.task.id,
            "rejected",
            {"uri": redact_uri(video.uri), "video_id": video.id, "reason": reason},
        )


def _finish(claim: Claim) -> None:
    """Assign the splits, count the videos, and give the task back or fail it."""
    is_append = claim.task.target_id is not None
    with claim.transaction() as session:
        videos = session.scalars(select(Video).where(Video.task_id == claim.task.id)).all()
        total = len(videos)
        accepted = [v for v in videos if v.status == "accepted"]
        reasons = [v.reason or "" for v in videos if v.status == "rejected"]
        held_out = None if is_append else _assign_splits(accepted)
        session.flush()
        counts = count_task_videos(session, claim.task.id)
        session.get_one(Task, claim.task.id).counts = counts
    if not total:
        claim.fail(
            "All videos of the task were deleted.", "Post a task with the videos that you want to keep."
        )
        return
    bad = sum(not reason.startswith(SAME_CONTENT) for reason in reasons)
    # An append of known videos alone changes nothing, so that a repeated request succeeds.
    allowed = 1.0 if is_append else settings().bad_video_share
    if bad > allowed * total or (not accepted and (bad or not is_append)):
        claim.fail(
            f"{bad} of {total} videos cannot be used ({bad / total:.0%}; {allowed:.0%} are allowed)."
            if accepted
            else f"None of the {total} videos can be used.",
            f"See 'rejected' for the reason of each video. Correct the files, then POST /tasks/{claim.task.id}/retry; "
            "or post a task without them.",
        )
        return
    claim.finish_probing(counts=counts, held_out=held_out)


def _assign_splits(accepted: Sequence[Video]) -> str | None:
    """Assign the splits of a domain's accepted videos; returns the origin of the held-out split."""
    splits = assign_splits(
        [SplitCandidate(v.vector_id, v.content_hash or "", bool(v.captions), v.split) for v in accepted],
        settings().held_out_share,
        settings().calibration_share,
    )
    for video in accepted:
        video.effective_split = splits.by_vector_id[video.vector_id]
    return splits.held_out
