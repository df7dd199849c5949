"""Complete probing: settle failed chunks, copies and splits, then give the task back or fail it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from cinestrata_schemas.problems import Action
from cinestrata_schemas.uris import redact_uri
from index.arrays import batches
from service.catalog.database import id_chunks, now, session_scope
from service.catalog.domain_videos import count_task_videos
from service.catalog.tables import Chunk, Task, Video
from service.core.settings import settings
from service.storage import library_files
from service.storage.video_files import is_removed_upload
from service.tasks.ingestion_checks import learns_all_captions
from service.tasks.lifecycle import ChunkClaim, Claim, plan_chunks
from service.tasks.lifecycle.state_machine import ISOLATED, SAME_CONTENT, is_unleased, lock_owned_task, reject

MAX_BAD_SHARE = 0.2  # a task with a larger share of unusable videos fails
CALIBRATION_SHARE = 0.05  # share of the validation split, which calibrates confidence, if none is given
_TRANSACTION_ROWS = 5000  # few enough that other catalog writers hardly wait

_MAX_ATTEMPTS = 2  # for a single video


def complete_probing(claim: Claim) -> None:
    """Reject copies, assign the splits, count the videos, and give the task back or fail it.

    Every step can be repeated, so a worker killed in between loses nothing. Raises as ``Claim.progress``.
    """
    is_append = claim.task.target_id is not None
    _reject_copies(claim)
    held_out = None if is_append else _assign_splits(claim)
    with claim.transaction() as session:
        counts = count_task_videos(session, claim.task.id)
        lock_owned_task(session, claim.task.id, claim.token).counts = counts  # a failed task also keeps them
        count = select(func.count()).where(Video.task_id == claim.task.id)
        # A retry does not read removed uploads again.
        is_uploaded = bool(session.scalar(count.where(is_removed_upload())))
        is_copy = Video.reason.startswith(SAME_CONTENT, autoescape=True)
        copies = session.scalar(count.where(Video.status == "rejected", is_copy))
    total, accepted = counts["videos"], counts["accepted"]
    if not total:
        hint = "Add a domain with the videos you want to keep."
        claim.fail("All videos in the task were deleted.", hint, Action(name="add_domain"))
        return
    bad = counts["rejected"] - (copies or 0)
    # An append whose videos are all rejected changes nothing: the domain does without them.
    if not is_append and (not accepted or bad > MAX_BAD_SHARE * total):
        reason = f"None of the {total} videos can be used."
        if accepted:
            share = f"{bad / total:.0%}; the limit is {MAX_BAD_SHARE:.0%}"
            reason = f"{bad} of {total} videos can't be used ({share})."
        hint = "Fix the rejected files, then retry the task; or delete it and add the other videos again."
        if is_uploaded:
            hint = "Fix the rejected files, then delete the task and add the videos again."
        claim.fail(
            reason, hint, Action(name="delete_task" if is_uploaded else "retry_task", id=claim.task.id)
        )
        return
    claim.finish_probing(counts=counts, held_out=held_out)


def _reject_copies(claim: Claim) -> None:
    """Reject copies of accepted videos with a smaller vector ID, which workers of other chunks have not seen."""
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
        .order_by(Video.vector_id.desc())  # the original has the smallest vector ID, so it is kept
        .limit(500)
    )
    while True:
        claim.tick()
        with claim.transaction() as session:
            videos = session.scalars(copies).all()
            if not videos:
                return
            accepted = select(Video.content_hash, Video.uri).where(
                Video.task_id == claim.task.id,
                Video.status == "accepted",
                Video.content_hash.in_({video.content_hash for video in videos}),
            )
            rows = session.execute(accepted.order_by(Video.vector_id.desc()))
            originals = {digest: uri for digest, uri in rows}
            for video in videos:
                reason = SAME_CONTENT + redact_uri(originals[video.content_hash])
                reject(session, video, reason, is_final=True, content_hash=video.content_hash)
                library_files.thumbnail_path(video.id).unlink(missing_ok=True)


def _assign_splits(claim: Claim) -> str | None:
    """Assign splits to a domain's accepted videos; returns where the held-out split comes from."""
    with session_scope() as session:
        rows = session.execute(
            select(Video.vector_id, Video.content_hash, Video.captions, Video.split, Video.effective_split)
            .where(Video.task_id == claim.task.id, Video.status == "accepted")
            .execution_options(yield_per=_TRANSACTION_ROWS)
        )
        candidates, before = [], {}
        for vector_id, digest, captions, split, effective in rows:
            candidates.append(SplitCandidate(vector_id, digest or "", bool(captions), split))
            before[vector_id] = effective
    is_folded = learns_all_captions(claim.task.method, claim.task.settings)
    share = 0.0 if is_folded else CALIBRATION_SHARE
    splits, held_out = assign_splits(candidates, settings().held_out_share, share, is_folded=is_folded)
    changed: dict[str | None, list[int]] = {}
    for vector_id, split in sorted(splits.items()):
        if before[vector_id] != split:
            changed.setdefault(split, []).append(vector_id)
    for split, vector_ids in changed.items():
        for group in batches(vector_ids, _TRANSACTION_ROWS):
            claim.tick()
            with claim.transaction() as session:
                for ids in id_chunks(group):
                    session.execute(
                        update(Video)
                        .where(Video.vector_id.in_(ids))
                        .values(effective_split=split)
                        .execution_options(synchronize_session=False)
                    )
    return held_out


def isolate_failures(claim: Claim) -> None:
    """Split a task's failed chunks, and reject single videos that failed again; raise LeaseLost, TaskCancelled.

    A chunk may fail because of one video, or because a worker is broken and dies at once or fails on every video. The
    task's owner therefore splits a failed chunk into single-video chunks, which it processes itself. A video whose own
    chunk fails twice is rejected.
    """
    with session_scope() as session:
        failed = _failed(claim.task.id) & is_unleased(now(session))
        if session.scalars(select(Chunk.id).where(failed).limit(1)).first() is None:
            return
    with claim.transaction() as session:
        at = now(session)
        for chunk in session.scalars(select(Chunk).where(failed).order_by(Chunk.number).with_for_update()):
            pending = pending_videos(session, chunk)
            # The row stays: SQLite would reuse its ID for a new chunk, and with it the last worker's claim.
            chunk.fencing_token += 1
            chunk.done_at = at
            if chunk.run == ISOLATED:
                cause = "Decoding it killed the worker"
                if chunk.error:
                    cause = f"It can't be processed ({chunk.error})"
                attempts = f"in {chunk.attempts} attempts with this video alone"
                reason = f"{cause} {attempts}. Export it again, or leave it out."
                for video in pending:
                    reject(session, video, reason, is_final=False)  # the machine may be the cause
                chunk.finished = chunk.videos
                task = session.get_one(Task, chunk.task_id)
                task.attempts = min(task.attempts, 1)  # progress, in as many steps as videos
                continue
            chunk.videos -= len(pending)
            chunk.finished = chunk.videos
            ids = [video.vector_id for video in pending]
            plan_chunks(session, chunk.task_id, "probing", ids, 1, run=ISOLATED)


def _failed(task_id: str) -> ColumnElement[bool]:
    return and_(
        Chunk.task_id == task_id,
        Chunk.stage == "probing",
        Chunk.done_at.is_(None),
        or_(
            Chunk.run.is_(None) & (Chunk.attempts >= 1),
            (Chunk.run == ISOLATED) & (Chunk.attempts >= _MAX_ATTEMPTS),
        ),
    )


def pending_videos(session: Session, chunk: Chunk | ChunkClaim) -> Sequence[Video]:
    """Load a chunk's pending videos."""
    return session.scalars(
        select(Video)
        .where(
            Video.task_id == chunk.task_id,
            Video.status == "pending",
            Video.vector_id.between(chunk.first_id, chunk.last_id),
        )
        .order_by(Video.vector_id)
    ).all()


@dataclass(frozen=True)
class SplitCandidate:
    """What determines an accepted video's split. ``split`` is the user's choice."""

    vector_id: int
    content_hash: str
    captioned: bool
    split: str | None


def assign_splits(
    candidates: Sequence[SplitCandidate],
    test_share: float,
    calibration_share: float = 0.0,
    *,
    is_folded: bool = False,
) -> tuple[dict[int, str | None], Literal["given", "derived", "cross_fitted"] | None]:
    """Keep given splits, and derive a test and a validation split if none is given.

    The choice depends on content alone (lowest hashes first), so the same videos are held out every time, in any order.
    Shares are of the captioned videos, 0..1. A derived test split has at least one video and leaves at least one for
    training; with ``is_folded``, it becomes the fold, which is learned and measured by cross-fitting. The share for
    calibration is rounded down, and taken from training videos without a given split.

    Returns the split of each video, by vector ID (None for one without captions or a given split, which is only
    indexed), and where the test split comes from, ``cross_fitted`` for a fold, or None if there is neither.
    """
    splits = {c.vector_id: c.split or ("train" if c.captioned else None) for c in candidates}
    captioned = [c for c in candidates if c.captioned]
    given = {c.split for c in captioned}
    free = [
        vector_id for _, vector_id in sorted((c.content_hash, c.vector_id) for c in captioned if not c.split)
    ]
    held_out: Literal["given", "derived", "cross_fitted"] | None = "given" if "test" in given else None
    if held_out is None and test_share > 0 and len(captioned) >= 2:
        reserved = 0 if "train" in given else 1
        count = min(max(1, int(test_share * len(captioned))), len(free) - reserved)
        if count > 0:
            splits |= dict.fromkeys(free[:count], "fold" if is_folded else "test")
            held_out = "cross_fitted" if is_folded else "derived"
            free = free[count:]
    if "val" not in given:
        # One is left for training.
        count = min(int(calibration_share * len(captioned)), max(0, len(free) - 1))
        splits |= dict.fromkeys(free[:count], "val")
    return splits, held_out
