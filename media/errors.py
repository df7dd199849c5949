"""What can be wrong with a video, and with the decoder itself."""

from __future__ import annotations

__all__ = ["DecoderUnavailable", "MediaError"]


class MediaError(ValueError):
    """A video cannot be used.

    Attributes:
        reason: one sentence a person can act on; it names the video as the caller did, never a server path.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DecoderUnavailable(RuntimeError):
    """The decoding process does not even start: the installation is at fault, and no video is to blame."""
