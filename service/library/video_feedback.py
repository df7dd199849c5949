"""Feedback: what callers say about a video as a result for a query.

Feedback numbers the video like an edit, so the next search in every process knows it
(:mod:`service.search.words.library_words`). Each caller has one vote on a video per query, regardless of case, word
order and inflection. Measures on held-out videos use captions, never feedback.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import Verdict
from cinestrata_schemas.videos import FeedbackDetails, FeedbackPage, FeedbackSpec
from index.words.word_forms import words_key
from service.access.audit_log import Actor, current_actor, record_change
from service.catalog.database import now, session_scope
from service.catalog.domain_videos import number_edits
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Feedback, Video, to_response
from service.core import request_limits
from service.core.errors import InvalidInput, NotFound
from service.core.text_rules import is_storable
from service.library.video_editing import lock_video

_ORDERS = KeysetOrders({"time": Feedback.id}, unique=Feedback.id)


def give_feedback(spec: FeedbackSpec) -> FeedbackDetails:
    """Store what the current actor says about a video. A new verdict replaces the previous one.

    Raises:
        NotFound: The video does not exist.
        InvalidInput: The text is not a valid query, or the caller has the maximum number of entries.
    """
    text = _checked(spec.text)
    key = words_key(text)
    if key is None:
        raise InvalidInput.at("text", "The text has no words.", "Send the query that was searched.")
    actor = current_actor()
    with session_scope(write=True) as session:
        _, found = lock_video(session, spec.video_id)
        if found.status != "accepted" or found.copy_of is not None:
            raise NotFound(f"No search can find the video {spec.video_id!r}.")
        video = found.vector_id
        own = session.scalars(_of_caller(select(Feedback), actor).where(Feedback.video_vector_id == video))
        # Rows of an earlier version have another key; the one with this key goes first, because keys are unique.
        same = [entry for entry in own if words_key(entry.text) == key]
        row = max(same, key=lambda entry: entry.words_key == key, default=None)
        if row is not None and (row.text, row.verdict) == (text, spec.verdict):
            return to_response(FeedbackDetails, row, video_id=spec.video_id)
        at = now(session)
        if row is None:
            _require_room(session, actor, video)
            row = Feedback(video_vector_id=video, caller=actor.name, caller_kind=actor.kind)
        row.text, row.verdict, row.words_key, row.created_at = text, spec.verdict, key, at
        session.add(row)
        session.flush()
        record_change(session, "feedback.give", spec.video_id, {"text": text, "verdict": spec.verdict})
        number_edits(session, [video])
        return to_response(FeedbackDetails, row, video_id=spec.video_id)


def list_feedback(
    *,
    video_id: str | None = None,
    text: str | None = None,
    verdict: Verdict | None = None,
    caller: str | None = None,
    own: bool = False,
    sort: str = "-time",
    cursor: str | None = None,
    limit: int = 100,
) -> FeedbackPage:
    """List a page of feedback.

    Args:
        video_id: Only on this video.
        text: Only for queries containing this text (case-insensitive).
        caller: Only from this user or key.
        own: Only from the current actor.
        sort: ``time`` (oldest first) or ``-time``.
    """
    query = select(Feedback)
    if own:
        query = _of_caller(query, current_actor())
    if caller is not None:
        query = query.where(Feedback.caller == caller)
    if verdict is not None:
        query = query.where(Feedback.verdict == verdict)
    if text is not None:
        query = query.where(contains_text(text, [Feedback.text]))
    if video_id is not None:
        query = query.where(Feedback.video_vector_id.in_(select(Video.vector_id).where(Video.id == video_id)))
    with session_scope() as session:
        page = _ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit)
        judged = [row.video_vector_id for row in page.rows]
        ids = dict(
            session.execute(select(Video.vector_id, Video.id).where(Video.vector_id.in_(judged))).all()
        )
        entries = [
            to_response(FeedbackDetails, row, video_id=ids[row.video_vector_id])
            for row in page.rows
            if row.video_vector_id in ids
        ]
    return FeedbackPage(feedback=entries, next_cursor=page.next_cursor)


def take_back(feedback_id: int, *, own: bool = False) -> None:
    """Delete a feedback entry.

    Args:
        own: Whether other callers' entries count as missing.

    Raises:
        NotFound: There is no such entry.
    """
    with session_scope(write=True) as session:
        query: Select[Any] = select(Feedback, Video.id).join(Video)  # type: ignore[assignment]
        query = query.where(Feedback.id == feedback_id)
        found = session.execute(_of_caller(query, current_actor()) if own else query).one_or_none()
        if found is None:
            raise NotFound(f"There is no feedback {feedback_id}{' of yours' if own else ''}.")
        row, video_id = found
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
    if not is_storable(text):
        raise InvalidInput.at(
            "text", "The text contains characters that are not text.", "Send valid Unicode text."
        )
    return text


def _of_caller(query: Select[Any], actor: Actor) -> Select[Any]:
    return query.where(Feedback.caller == actor.name, Feedback.caller_kind == actor.kind)


def _require_room(session: Session, actor: Actor, video: int) -> None:
    """Refuse a caller who has the maximum number of entries, in total or on one video."""
    given = _of_caller(select(func.count()).select_from(Feedback), actor)
    on_video, limit_on_video = (
        given.where(Feedback.video_vector_id == video),
        request_limits.MAX_FEEDBACK_ON_A_VIDEO,
    )
    for count, limit, where in (
        (given, request_limits.MAX_FEEDBACK, ""),
        (on_video, limit_on_video, " on this video"),
    ):
        if (session.scalar(count) or 0) >= limit:
            raise InvalidInput.at(
                "text",
                f"You have given feedback {limit} times{where}.",
                "Take back some of it, or write captions instead.",
            )
