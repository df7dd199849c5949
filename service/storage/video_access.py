"""Local files of videos, for probing and embedding, whatever the source of the video is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.storage.library_paths import resolve_video_path

__all__ = ["local_video"]


@contextmanager
def local_video(uri: str) -> Iterator[Path]:
    """A file with the content of a video, which exists until the block ends.

    Args:
        uri: URI of the video as the catalog has it.

    Raises:
        MediaError: The video cannot be used; probing rejects it.
        SourceUnavailable: The source of the video cannot be reached at the moment; the video must not be rejected.
    """
    yield resolve_video_path(uri)
