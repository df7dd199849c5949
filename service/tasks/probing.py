"""The probing job: every video of a task is hashed, decoded and sampled, or left out with a reason."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import select

from media import MediaError, VideoDecoder, VideoInfo, VideoLimits, content_hash, frame_cache_path
from models.backbones.backbone_loading import frame_spec
from service.catalog.tables import Task, Video
from service.core import request_limits
from service.core.settings import settings
from service.storage import library_paths
from service.storage.video_files import delete_video_files
from service.tasks.dataset_splits import Clip, assign_splits, count
from service.tasks.lifecycle import Claim
from service.tasks.task_events import record

__all__ = ["SAME_CONTENT", "probe"]

SAME_CONTENT = "same content as "  # a video rejected for this reason is not a bad one


@dataclass(frozen=True)
class _Pending:
    vector_id: int
    id: str
    uri: str


def probe(claim: Claim) -> None:
    """Examine what was not examined yet, then give the task back to wait for its turn to be learned.

    The task fails when more than ``settings.bad_video_share`` of its videos cannot be used, or all of them.

    Raises:
        LeaseLost, TaskCancelled, WorkerStopping: see ``Claim.progress``.
    """
    pending, hashes, total = _load(claim)
    done, started = total - len(pending), time.monotonic()
    limits = VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES)
    with VideoDecoder(limits) as examiner:
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
            _examine(claim, examiner, limits, video, hashes)
    claim.progress("probing", 1.0, done=total, total=total)
    _conclude(claim)


def _load(claim: Claim) -> tuple[list[_Pending], dict[str, str], int]:
    """What is left to do, and which content is known already (hash → URI). A vanished frame cache is made anew."""
    spec = frame_spec(settings().backbone, settings().frames)
    with claim.transaction() as session:
        videos = session.scalars(
            select(Video).where(Video.task_id == claim.task.id).order_by(Video.vector_id)
        ).all()
        for video in videos:
            if video.status == "accepted" and video.content_hash:
                cache = frame_cache_path(settings().cache_dir, spec.frames, spec.size, video.content_hash)
                if not cache.exists():
                    video.status = "pending"
        pending = [_Pending(v.vector_id, v.id, v.uri) for v in videos if v.status == "pending"]
        hashes = {v.content_hash: v.uri for v in videos if v.status == "accepted" and v.content_hash}
    return pending, hashes, len(videos)


def _examine(
    claim: Claim, examiner: VideoDecoder, limits: VideoLimits, video: _Pending, hashes: dict[str, str]
) -> None:
    spec = frame_spec(settings().backbone, settings().frames)
    try:
        path = library_paths.resolve_video_path(video.uri)
        limits.check_file(path, video.uri)
        digest = content_hash(path)
        if digest in hashes:
            _reject(claim, video, SAME_CONTENT + hashes[digest])
            return
        info = examiner.decode(
            path,
            frames=spec.frames,
            size=spec.size,
            name=video.uri,
            thumbnail=library_paths.thumbnail_path(video.id),
            cache=settings().cache_dir,
        )
        if info.content_hash != digest:
            raise MediaError("The file changed while it was read.")
    except MediaError as error:
        _reject(claim, video, error.reason)
    except FileNotFoundError:
        _reject(claim, video, "The file is not there any more.")
    except OSError as error:
        _reject(claim, video, f"The file cannot be read ({error.strerror or type(error).__name__}).")
    else:
        _accept(claim, video, info)
        hashes[digest] = video.uri


def _accept(claim: Claim, video: _Pending, info: VideoInfo) -> None:
    with claim.transaction() as session:
        row = session.get(Video, video.vector_id)
        if row is None:  # deleted while it was examined, which made its files anew
            delete_video_files(session, [(video.id, video.uri, info.content_hash)])
            return
        row.status, row.reason = "accepted", None
        row.content_hash, row.bytes = info.content_hash, info.bytes
        row.container, row.codec = info.container, info.codec
        row.width, row.height = info.width, info.height
        row.fps, row.duration, row.frames = info.fps, info.duration, info.frames


def _reject(claim: Claim, video: _Pending, reason: str) -> None:
    with claim.transaction() as session:
        row = session.get(Video, video.vector_id)
        if row is None:  # deleted while it was examined
            return
        row.status, row.reason, row.content_hash = "rejected", reason, None
        record(session, claim.task.id, "rejected", {"uri": video.uri, "video_id": video.id, "reason": reason})


def _conclude(claim: Claim) -> None:
    with claim.transaction() as session:
        videos = session.scalars(select(Video).where(Video.task_id == claim.task.id)).all()
        total = len(videos)
        accepted = [v for v in videos if v.status == "accepted"]
        reasons = [v.reason or "" for v in videos if v.status == "rejected"]
        splits = assign_splits(
            [Clip(v.vector_id, v.content_hash or "", bool(v.captions), v.split) for v in accepted],
            settings().held_out_share,
            settings().calibration_share,
        )
        for video in accepted:
            video.effective_split = splits.of[video.vector_id]
        counts = count(total, len(reasons), splits)
        session.get_one(Task, claim.task.id).counts = counts
    if not total:
        claim.fail(
            "All videos of the task were deleted.", "Post a task with the videos that you want to keep."
        )
        return
    bad = sum(not reason.startswith(SAME_CONTENT) for reason in reasons)
    allowed = settings().bad_video_share
    if bad > allowed * total or not accepted:
        claim.fail(
            f"{bad} of {total} videos could not be used ({bad / total:.0%}; {allowed:.0%} are allowed).",
            f"See 'rejected' for each video's reason. Mend the files, then POST /tasks/{claim.task.id}/retry; or "
            "post a task without them.",
        )
        return
    claim.finish_probing(counts=counts, held_out=splits.held_out)
