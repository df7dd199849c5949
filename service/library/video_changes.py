"""Change what is known about videos: edits of captions, metadata and transcripts, and feedback on results.

An edit changes only the video's row: its vector stays the same, and its shard's encoder is not retrained. The next
search in every process finds the new words, filters by the new metadata and shows the new captions: caches are
versioned by the counters in :mod:`service.catalog.domain_videos`. Within about a second, the domain's routing profile
is computed again, without captions of held-out videos (:mod:`service.search.snapshots.appended_captions`). Calibration
and the recall matrix stay as measured until the next task.

Feedback is what callers say about a video as a result for a query. It numbers the video like an edit. Each caller has
one vote on a video per query, regardless of case, word order and inflection. Measures on held-out videos use captions,
never feedback.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from cinestrata_schemas import videos
from index.words.word_forms import words_key
from service.access.audit_log import Actor, current_actor, record_change
from service.catalog.database import now, session_scope
from service.catalog.domain_videos import count_edit, number_edits
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Feedback, Task, Video, to_response
from service.catalog.video_texts import edit_texts, read_texts
from service.core import request_limits
from service.core.errors import Conflict, InvalidInput, NotFound, PreconditionFailed
from service.core.list_parameters import FeedbackFilters
from service.core.text_rules import UNSTORABLE
from service.library.library_listing import read_video
from service.tasks.ingestion_checks import validate_edit
from service.tasks.lifecycle.state_machine import lock_task, record

_ORDERS = KeysetOrders({"time": Feedback.id}, unique=Feedback.id)


def edit_video(
    video_id: str, patch: videos.VideoPatch, *, expected_tag: str | None = None
) -> videos.VideoDetails:
    """Change the set fields of a video, and return its details. Changed texts become a person's. Idempotent.

    Raises NotFound, InvalidInput, PreconditionFailed if the video has none of the entity tags of the ``If-Match``
    header, or Conflict if it will replace another video, and take over its captions.
    """
    with session_scope(write=True) as session:
        task, video = lock_video(session, video_id)
        _refuse_copy(session, video)
        tags = None if expected_tag is None else {tag.strip() for tag in expected_tag.split(",")}
        if tags is not None and tags.isdisjoint({"*", entity_tag(read_video(session, video_id))}):
            raise PreconditionFailed(
                f"Video {video_id!r} has changed since you read it; read it again, then repeat the edit."
            )
        captions, metadata = video.captions, video.extra
        validate_edit((), patch.metadata or {})  # limits the depth of the merge
        if "captions" in patch.model_fields_set:
            captions = patch.captions or []
        transcript = patch.transcript or () if "transcript" in patch.model_fields_set else None
        if "metadata" in patch.model_fields_set:
            metadata = _merge(video.extra, patch.metadata) if patch.metadata is not None else {}
        captions, cues = validate_edit(captions, metadata, transcript or ())
        is_changed = {
            "captions": captions != video.captions,
            "metadata": metadata != video.extra,
            "transcript": transcript is not None and edit_texts(session, video.vector_id, cues),
        }
        changed = [field for field, differs in is_changed.items() if differs]
        if changed:
            video.captions, video.extra, video.replaced_at = captions, metadata, None
            _record_edit(session, task, video, changed)
        return read_video(session, video_id)


def edit_cue(video_id: str, cue_id: str, patch: videos.CuePatch | None) -> videos.VideoDetails:
    """Change a timed text of a video, which becomes a person's, or delete it (None); return the video's details.

    Raises NotFound if video or text do not exist (a changed text has another ID), and else as :func:`edit_video`.
    """
    with session_scope(write=True) as session:
        task, video = lock_video(session, video_id)
        _refuse_copy(session, video)
        texts = read_texts(session, video.vector_id)
        text = next((text for text in texts if text.id == cue_id), None)
        if text is None:
            raise NotFound(f"Video {video_id!r} has no text {cue_id!r}. Read the video again.")
        texts.remove(text)
        if patch is not None:  # only this text is checked: a long video may have more than anybody may send
            changes = {**patch.model_dump(exclude_none=True), "source": "person"}
            texts += validate_edit((), {}, [videos.Cue.model_construct(**text._asdict() | changes)])[1]
        if edit_texts(session, video.vector_id, sorted(texts, key=lambda text: text[:3])):
            video.replaced_at = None
            _record_edit(session, task, video, ["transcript"])
        return read_video(session, video_id)


def _record_edit(session: Session, task: Task, video: Video, changed: list[str]) -> None:
    domain_id, edited = task.target_id or task.id, [video.vector_id]
    count_edit(session, domain_id, edited, captions="captions" in changed, metadata="metadata" in changed)
    message = f"{' and '.join(changed).capitalize()} of video {video.id} were edited."
    record(session, task.id, "log", {"message": message, "video_id": video.id, "edited": changed})
    record_change(session, "video.edit", video.id, {"task": task.id, "fields": changed})
    session.flush()


def entity_tag(video: videos.VideoDetails) -> str:
    """Compute a video's ``ETag``, which changes with every field of the response."""
    return f'"{hashlib.sha256(video.model_dump_json().encode()).hexdigest()[:32]}"'


def lock_video(session: Session, video_id: str) -> tuple[Task, Video]:
    """Lock the row of a video's task until commit, and return task and video; raise NotFound."""
    while "\0" not in video_id:
        task_id = session.scalar(select(Video.task_id).where(Video.id == video_id))
        if task_id is None:
            break
        task = lock_task(session, task_id)
        video = session.scalars(
            select(Video)
            .where(Video.id == video_id, Video.task_id == task_id)
            .execution_options(populate_existing=True)
        ).one_or_none()
        if video is not None:
            return task, video
        # Either it moved from the append to its domain when that was published, or it was deleted.
    raise NotFound(f"There is no video {video_id!r}.")


def _refuse_copy(session: Session, video: Video) -> None:
    original = session.scalar(select(Video.id).where(Video.vector_id == video.copy_of))
    if original is not None:
        raise Conflict(
            f"Video {video.id!r} will replace {original!r} once it is published, and receive "
            f"the original's captions and metadata. Edit {original!r} instead."
        )


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


def give_feedback(spec: videos.FeedbackSpec) -> videos.FeedbackDetails:
    """Store the actor's verdict, which replaces the previous one; raise NotFound, or InvalidInput (text, too many)."""
    text = _checked(spec.text)
    key = words_key(text)
    if key is None:
        raise InvalidInput.at("text", "The text has no words.", "Send the query that was searched.")
    actor = current_actor()
    with session_scope(write=True) as session:
        _, target = lock_video(session, spec.video_id)
        if target.status != "accepted" or target.copy_of is not None:
            raise NotFound(f"No search can find the video {spec.video_id!r}.")
        video = target.vector_id
        given = session.scalars(_of_caller(select(Feedback), actor).where(Feedback.video_vector_id == video))
        # Rows of an earlier version have another key; the one with this key goes first, because keys are unique.
        same = [entry for entry in given if words_key(entry.text) == key]
        row = max(same, key=lambda entry: entry.words_key == key, default=None)
        if row is not None and (row.text, row.verdict) == (text, spec.verdict):
            return to_response(videos.FeedbackDetails, row, video_id=spec.video_id)
        at = now(session)
        if row is None:
            _require_room(session, actor, video)
            row = Feedback(video_vector_id=video, caller=actor.name, caller_kind=actor.kind)
        row.text, row.verdict, row.words_key, row.created_at = text, spec.verdict, key, at
        session.add(row)
        session.flush()
        record_change(session, "feedback.give", spec.video_id, {"text": text, "verdict": spec.verdict})
        number_edits(session, [video])
        return to_response(videos.FeedbackDetails, row, video_id=spec.video_id)


def list_feedback(wanted: FeedbackFilters) -> videos.FeedbackPage:
    """List a page of feedback, by the parameters of ``GET /feedback``; ``own``: only from the current actor."""
    query = select(Feedback).filter_by(**wanted.model_dump(include={"caller", "verdict"}, exclude_none=True))
    if wanted.own:
        query = _of_caller(query, current_actor())
    if wanted.text is not None:
        query = query.where(contains_text(wanted.text, [Feedback.text]))
    if wanted.video_id is not None:
        query = query.where(
            Feedback.video_vector_id.in_(select(Video.vector_id).where(Video.id == wanted.video_id))
        )
    with session_scope() as session:
        page = _ORDERS.read_page(session, query, wanted.sort, wanted.cursor, wanted.limit)
        vector_ids = [row.video_vector_id for row in page.rows]
        ids = dict(
            session.execute(select(Video.vector_id, Video.id).where(Video.vector_id.in_(vector_ids))).all()
        )
        entries = [
            to_response(videos.FeedbackDetails, row, video_id=ids[row.video_vector_id])
            for row in page.rows
            if row.video_vector_id in ids
        ]
    return videos.FeedbackPage(feedback=entries, next_cursor=page.next_cursor)


def take_back(feedback_id: int, *, own: bool = False) -> None:
    """Delete a feedback entry; raise NotFound, with ``own`` also for other callers' entries."""
    with session_scope(write=True) as session:
        query: Select[Any] = select(Feedback, Video.id).join(Video)  # type: ignore[assignment]
        query = query.where(Feedback.id == feedback_id)
        entry = session.execute(_of_caller(query, current_actor()) if own else query).one_or_none()
        if entry is None:
            raise NotFound(f"There is no feedback {feedback_id}{' of yours' if own else ''}.")
        row, video_id = entry
        details = {"text": row.text, "verdict": row.verdict, "caller": row.caller}
        # A reassignment may have moved the entry to another video since.
        video = session.scalar(
            delete(Feedback).where(Feedback.id == feedback_id).returning(Feedback.video_vector_id)
        )
        if video is None:
            return
        record_change(session, "feedback.take_back", video_id, details)
        number_edits(session, [video])


def _checked(text: str) -> str:
    text, limit = text.strip(), request_limits.MAX_QUERY_CHARS
    if len(text) > limit:
        raise InvalidInput.at("text", f"The text has {len(text)} characters.", f"Use at most {limit}.")
    if UNSTORABLE.search(text):
        raise InvalidInput.at(
            "text", "The text contains characters that are not text.", "Send valid Unicode text."
        )
    return text


def _of_caller(query: Select[Any], actor: Actor) -> Select[Any]:
    return query.where(Feedback.caller == actor.name, Feedback.caller_kind == actor.kind)


def _require_room(session: Session, actor: Actor, video: int) -> None:
    """Refuse a caller who has the maximum number of entries, in total or on one video."""
    given = _of_caller(select(func.count()).select_from(Feedback), actor)
    on_video = given.where(Feedback.video_vector_id == video)
    for count, limit, where in (
        (given, request_limits.MAX_FEEDBACK, ""),
        (on_video, request_limits.MAX_FEEDBACK_ON_A_VIDEO, " on this video"),
    ):
        if (session.scalar(count) or 0) >= limit:
            raise InvalidInput.at(
                "text",
                f"You have given feedback {limit} times{where}.",
                "Take back some of it, or write captions instead.",
            )
