"""Check that text can be stored in the catalog and read by a tokenizer."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Check that a text has neither a NUL nor a lone surrogate."""
    return _UNSTORABLE.search(text) is None
