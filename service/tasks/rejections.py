"""Reject videos while their task is processed."""

from __future__ import annotations

from sqlalchemy.orm import Session

from cinestrata_schemas.uri_redaction import redact_uri
from media.errors import MediaError
from service.catalog.tables import Video
from service.tasks.task_events import record

SAME_CONTENT = "same content as "  # starts the reason for duplicates, which do not count as bad videos


class SameContent(MediaError):
    """A video has the same content as an accepted one.

    Args:
        uri: URI of the accepted video.
    """

    def __init__(self, uri: str, content_hash: str) -> None:
        super().__init__(SAME_CONTENT + redact_uri(uri))
        self.content_hash = content_hash


def reject(
    session: Session, video: Video, reason: str, *, is_final: bool, content_hash: str | None = None
) -> None:
    """Reject a video, and record the event.

    Args:
        is_final: Whether the content is the reason, so that a retry would reject the same file again.
        content_hash: Digest of a copy's content, by which a sync finds the original.
    """
    video.status, video.reason, video.content_hash = "rejected", reason, content_hash
    video.is_rejection_final = is_final
    facts = {"uri": redact_uri(video.uri), "video_id": video.id, "reason": reason}
    record(session, video.task_id, "rejected", facts)
