"""Errors of sources. A missing file rejects one video; an outage is repeated later and rejects nothing."""

from __future__ import annotations

from media.errors import MediaError

__all__ = ["InconsistentFile", "RangeOutside", "SourceOutage"]


class SourceOutage(RuntimeError):
    """A source cannot be reached at the moment, or refuses the server's credentials; its files may be intact.

    Attributes:
        reason: A sentence without credentials.
        retry_after: Seconds until the source wants the next request; None if it does not say.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class InconsistentFile(MediaError):
    """A file ended early or changed during its download. A new attempt may succeed."""


class RangeOutside(MediaError):
    """A file has no byte of the requested range."""
