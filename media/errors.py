"""Errors of videos, of the decoder, and of sources.

A missing file rejects one video; an outage is repeated later and rejects nothing.
"""

from __future__ import annotations


class MediaError(ValueError):
    """A video cannot be used.

    Attributes:
        reason: A sentence with the remedy; it names the video as the caller did, never a path on the server.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DecoderUnavailable(RuntimeError):
    """The decoder process does not start or ends with every video: the machine is the cause, not a video."""


class SourceOutage(RuntimeError):
    """A source is currently unreachable, or refuses the server's credentials; its files may be intact.

    Attributes:
        reason: A sentence without credentials.
        retry_after: Seconds until the source wants the next request; None if it does not say.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class UndecidedVideo(MediaError):
    """A video cannot be used now but may be intact: a new attempt may succeed."""


class InconsistentFile(UndecidedVideo):
    """A file ended early or changed during its download."""


class RangeOutside(MediaError):
    """A file has no byte of the requested range."""
