"""What can keep a benchmark from running."""

from __future__ import annotations

__all__ = ["ProtocolError"]


class ProtocolError(ValueError):
    """A protocol, a method entry or the videos that were given cannot be used; the message says what to do."""
