"""Completion of probing: copies are rejected, splits assigned, videos counted, and the task is given back or failed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from sqlalchemy import func, select, update
from sqlalchemy.orm import aliased

from cinestrata_schemas.problems import Action
from cinestrata_schemas.uri_redaction import redact_uri
from service.catalog.database import id_chunks, session_scope
from service.catalog.domain_videos import count_task_videos
from service.catalog.tables import Video
from service.core.settings import settings
from service.storage import library_paths
from service.tasks.dataset_splits import SplitCandidate, assign_splits
from service.tasks.lifecycle import Claim
from service.tasks.lifecycle.publishing import SAME_CONTENT
from service.tasks.lifecycle.state_machine import lock_owned_task
from service.tasks.task_events import record

MAX_BAD_SHARE = 0.2  # a task with a larger share of unusable videos fails
CALIBRATION_SHARE = 0.05  # share of the validation split, which calibrates confidences, where none is given
_TRANSACTION_ROWS = 5000  # short enough that other writers of the catalog hardly wait


def complete_probing(claim: Claim) -> None:
    """Reject copies, assign the splits, count the videos, and give the task back or fail it.

    Each step can be repeated, so that a worker that is killed in between loses nothing.

    Raises:
        LeaseLost, TaskCancelled, WorkerStopping: see ``Claim.progress``.
    """
    is_append = claim.task.target_id is not None
    _reject_copies(claim)
    held_out = None if is_append else _assign_splits(claim)
    with claim.transaction() as session:
        counts = count_task_videos(session, claim.task.id)
        lock_owned_task(session, claim.task.id, claim.token).counts = counts  # a failed task keeps them, too
        is_uploaded = bool(
            session.scalar(
                select(Video.vector_id)
                .where(
                    Video.task_id == claim.task.id,
                    Video.status == "rejected",
                    Video.uri.startswith(library_paths.UPLOAD_SCHEME, autoescape=True),
                )
                .limit(1)
            )
        )
        copies = session.scalar(
            select(func.count()).where(
                Video.task_id == claim.task.id,
                Video.status == "rejected",
                Video.reason.startswith(SAME_CONTENT, autoescape=True),
            )
        )
    total, accepted = counts["videos"], counts["accepted"]
    if not total:
        claim.fail(
            "All videos of the task were deleted.",
            "Add a domain with the videos that you want to keep.",
            Action(name="add_domain"),
        )
        return
    bad = counts["rejected"] - (copies or 0)
    # An append of known videos alone changes nothing, so that a repeated request succeeds.
    allowed = 1.0 if is_append else MAX_BAD_SHARE
    if bad > allowed * total or (not accepted and (bad or not is_append)):
        claim.fail(
            f"{bad} of {total} videos cannot be used ({bad / total:.0%}; {allowed:.0%} are allowed)."
            if accepted
            else f"None of the {total} videos can be used.",
            # A retry would read the same bytes of uploaded files again.
            "Correct the rejected files, then delete the task and add the videos again."
            if is_uploaded
            else "Correct the rejected files, then retry the task; or delete it and add the other videos again.",
            Action(name="delete_task" if is_uploaded else "retry_task", id=claim.task.id),
        )
        return
    claim.finish_probing(counts=counts, held_out=held_out)


def _reject_copies(claim: Claim) -> None:
    """Reject accepted videos whose content an accepted video with a smaller vector id has.

    Workers that process chunks at the same time do not see the content of each other's videos.
    """
    earlier = aliased(Video)
    has_original = (
        select(earlier.vector_id)
        .where(
            earlier.task_id == Video.task_id,
            earlier.status == "accepted",
            earlier.content_hash == Video.content_hash,
            earlier.vector_id < Video.vector_id,
        )
        .exists()
    )
    copies = (
        select(Video)
        .where(Video.task_id == claim.task.id, Video.status == "accepted", has_original)
        .order_by(Video.vector_id.desc())  # the original has the smallest vector id, so it remains
        .limit(500)
    )
    while True:
        claim.tick()
        with claim.transaction() as session:
            videos = session.scalars(copies).all()
            if not videos:
                return
            originals = {
                digest: uri
                for digest, uri in session.execute(
                    select(Video.content_hash, Video.uri)
                    .where(
                        Video.task_id == claim.task.id,
                        Video.status == "accepted",
                        Video.content_hash.in_({video.content_hash for video in videos}),
                    )
                    .order_by(Video.vector_id.desc())
                )
            }
            for video in videos:
                reason = SAME_CONTENT + redact_uri(originals[video.content_hash])
                video.status, video.reason, video.content_hash = "rejected", reason, None
                library_paths.thumbnail_path(video.id).unlink(missing_ok=True)
                facts = {"uri": redact_uri(video.uri), "video_id": video.id, "reason": reason}
                record(session, claim.task.id, "rejected", facts)


def _assign_splits(claim: Claim) -> str | None:
    """Assign the splits of a domain's accepted videos; returns the origin of the held-out split."""
    with session_scope() as session:
        rows = session.execute(
            select(Video.vector_id, Video.content_hash, Video.captions, Video.split, Video.effective_split)
            .where(Video.task_id == claim.task.id, Video.status == "accepted")
            .execution_options(yield_per=_TRANSACTION_ROWS)
        )
        candidates, present = [], {}
        for vector_id, digest, captions, split, effective in rows:
            candidates.append(SplitCandidate(vector_id, digest or "", bool(captions), split))
            present[vector_id] = effective
    splits = assign_splits(candidates, settings().held_out_share, CALIBRATION_SHARE)
    changed: dict[str | None, list[int]] = {}
    for vector_id, split in splits.by_vector_id.items():
        if present[vector_id] != split:
            changed.setdefault(split, []).append(vector_id)
    for name, ids in changed.items():
        _write_split(claim, name, sorted(ids))
    return splits.held_out


def _write_split(claim: Claim, split: str | None, vector_ids: Sequence[int]) -> None:
    parts = id_chunks(vector_ids)
    while group := list(islice(parts, _TRANSACTION_ROWS // 500)):
        claim.tick()
        with claim.transaction() as session:
            for ids in group:
                session.execute(
                    update(Video)
                    .where(Video.vector_id.in_(ids))
                    .values(effective_split=split)
                    .execution_options(synchronize_session=False)
                )
