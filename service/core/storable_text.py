"""Texts that the catalog can store and a tokenizer can read."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Return whether a text has neither a NUL nor a lone surrogate."""
    return _UNSTORABLE.search(text) is None
