"""Errors of videos, the decoder and sources.

A missing file rejects one video. An outage rejects nothing: the task is tried again later.
"""

from __future__ import annotations


class MediaError(ValueError):
    """A video cannot be used. The reason says what to do, and names the video as the caller did, without a path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DecoderUnavailable(RuntimeError):
    """The decoder process does not start, or dies on every video: the cause is the machine, not a video."""


class SourceOutage(RuntimeError):
    """A source is unreachable at the moment, or refuses the server's credentials; its files may be intact.

    The reason has no credentials. ``retry_after`` are the seconds that the source asks to wait.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class UndecidedVideo(MediaError):
    """A video cannot be used now but may be intact: another attempt may succeed."""


class InconsistentFile(UndecidedVideo):
    """A file ended early or changed while it was downloaded."""


class RangeOutside(MediaError):
    """A file has no bytes in the requested range."""
