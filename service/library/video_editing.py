"""Edit videos: captions, metadata and transcripts.

An edit changes only the video's row: its vector stays the same, and its shard's encoder is not retrained. The next
search in every process finds the new words and shows the new captions. Search caches are versioned by the counters in
:mod:`service.catalog.domain_videos`:

* The next search re-reads the video's words (:mod:`service.search.words.library_words`), also for held-out videos.
* The next filtered search re-reads metadata columns.
* Within about a second, the domain's routing profile is recomputed from the catalog's captions, without those of
  held-out videos (:mod:`service.search.snapshots.appended_captions`).
* Captions that describe videos are encoded again by the next request for them.

Calibration and the recall matrix stay as measured until the next task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.videos import VideoDetails, VideoPatch
from service.access.audit_log import record_change
from service.catalog.database import session_scope
from service.catalog.domain_videos import count_edit
from service.catalog.tables import Task, Video
from service.catalog.transcripts import read_transcript, store_transcripts
from service.core.errors import Conflict, NotFound, PreconditionFailed
from service.library.video_listing import read_video
from service.tasks.ingestion_checks import validate_edit
from service.tasks.lifecycle.state_machine import lock_task
from service.tasks.task_events import record

log = structlog.get_logger(__name__)


def edit_video(
    video_id: str, patch: VideoPatch, *, expected_tag: str | None = None, caller: str = ""
) -> VideoDetails:
    """Change a video's captions, metadata or transcript. Idempotent.

    Args:
        patch: Changes; only fields that are set apply.
        expected_tag: ``If-Match`` header with acceptable entity tags; None: no condition.
        caller: Identity of the caller, for the log.

    Returns:
        The video after the edit.

    Raises:
        NotFound: The video does not exist.
        Conflict: The video will replace another, and take over its captions and metadata.
        PreconditionFailed: The video has another entity tag.
        InvalidInput: The captions or the merged metadata are invalid.
    """
    with session_scope(write=True) as session:
        task, video = lock_video(session, video_id)
        _refuse_copy(session, video)
        if expected_tag is not None and not _matches(expected_tag, read_video(session, video_id)):
            raise PreconditionFailed(
                f"Video {video_id!r} has changed since you read it; read it again, then repeat the edit."
            )
        captions, metadata = video.captions, video.extra
        validate_edit((), patch.metadata or {})  # limits the depth of the merge
        if "captions" in patch.model_fields_set:
            captions = patch.captions or []
        stored = read_transcript(session, video.vector_id)
        transcript = patch.transcript or () if "transcript" in patch.model_fields_set else None
        if "metadata" in patch.model_fields_set:
            metadata = _merge(video.extra, patch.metadata) if patch.metadata is not None else {}
        captions, cues = validate_edit(captions, metadata, transcript or ())
        changed = {
            field: is_changed
            for field, is_changed in (
                ("captions", captions != video.captions),
                ("metadata", metadata != video.extra),
                ("transcript", transcript is not None and cues != stored),
            )
            if is_changed
        }
        if changed:
            video.captions, video.extra, video.replaced_at = captions, metadata, None
            if "transcript" in changed:
                store_transcripts(session, {video.vector_id: cues})
            count_edit(
                session,
                task.target_id or task.id,
                [video.vector_id],
                captions="captions" in changed,
                metadata="metadata" in changed,
            )
            message = f"{' and '.join(changed).capitalize()} of video {video_id} were edited."
            record(
                session, task.id, "log", {"message": message, "video_id": video_id, "edited": list(changed)}
            )
            record_change(session, "video.edit", video_id, {"task": task.id, "fields": list(changed)})
            session.flush()
        details = read_video(session, video_id)
    if changed:
        log.info("video_edited", video=video_id, task=task.id, fields=list(changed), caller=caller)
    return details


def entity_tag(video: VideoDetails) -> str:
    """Compute a video's ``ETag``, which changes with every field of the response."""
    return f'"{hashlib.sha256(video.model_dump_json().encode()).hexdigest()[:32]}"'


def lock_video(session: Session, video_id: str) -> tuple[Task, Video]:
    """Lock the row of a video's task until commit, and return task and video; raise NotFound."""
    while "\0" not in video_id:
        task_id = session.scalar(select(Video.task_id).where(Video.id == video_id))
        if task_id is None:
            break
        task = lock_task(session, task_id)
        found = session.scalars(
            select(Video)
            .where(Video.id == video_id, Video.task_id == task_id)
            .execution_options(populate_existing=True)
        ).one_or_none()
        if found is not None:
            return task, found
        # Either it moved from the append to its domain when that was published, or it was deleted.
    raise NotFound(f"There is no video {video_id!r}.")


def _refuse_copy(session: Session, video: Video) -> None:
    original = session.scalar(select(Video.id).where(Video.vector_id == video.copy_of))
    if original is not None:
        raise Conflict(
            f"Video {video.id!r} will replace {original!r} once it is published, and take over "
            f"the original's captions and metadata. Edit {original!r} instead."
        )


def _matches(expected: str, video: VideoDetails) -> bool:
    tags = [tag.strip() for tag in expected.split(",")]
    return "*" in tags or entity_tag(video) in tags


def _merge(stored: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a JSON Merge Patch (RFC 7396) to an object."""
    merged = dict(stored)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            current = merged.get(name)
            merged[name] = _merge(current if isinstance(current, dict) else {}, value)
        else:
            merged[name] = value
    return merged
