"""Base of fake query encoders that route by words alone."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["WordRouting"]


class WordRouting:
    """Routing without evidence in addition to that of the words."""

    routing_identity = ""

    def routing_evidence(self, texts: Sequence[str], tasks: Sequence[str]) -> None:
        """Return no evidence."""
