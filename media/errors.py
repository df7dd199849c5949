"""Errors of videos, and of the decoder itself."""

from __future__ import annotations

__all__ = ["DecoderUnavailable", "MediaError"]


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
