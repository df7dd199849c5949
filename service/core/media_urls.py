"""URL paths of a video's files."""

from __future__ import annotations

from cinestrata_schemas.videos import VideoMoment
from service.core.settings import settings


def media_urls(video_id: str, moment: VideoMoment | None = None) -> tuple[str, str]:
    """Build the URL paths of thumbnail and stream, with a media fragment for a moment: players play that part."""
    video = f"{settings().root_path}/videos/{video_id}"
    fragment = f"#t={moment.start:.2f},{moment.end:.2f}" if moment else ""
    return f"{video}/thumbnail", f"{video}/stream{fragment}"
