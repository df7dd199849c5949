"""Text that both databases can store and a tokenizer can read: without NUL and lone surrogates."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Check that a text has neither a NUL nor a lone surrogate."""
    return _UNSTORABLE.search(text) is None


def storable(text: str) -> str:
    """Replace NULs and lone surrogates by the replacement character."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)
