"""Take texts and metadata from other programs' files, within the limits of a video."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

from service.core import request_limits
from service.core.storable_text import is_storable

MAX_METADATA_CHARS = 1000  # per text; longer ones are prose or signed addresses
# Local paths, and download addresses, which may contain credentials.
_PRIVATE_FIELDS = frozenset(("filename", "url", "manifest_url", "fragment_base_url", "cookies"))


def plain_fields(fields: Mapping[str, Any], omitted: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Keep strings, numbers, booleans and string lists, in order and within the metadata limit.

    Args:
        omitted: Keys to leave out, besides private ones.
    """
    plain: dict[str, Any] = {}
    size = 2
    for key, value in fields.items():
        if key in omitted or key in _PRIVATE_FIELDS or not _is_plain(value):
            continue
        if key.startswith("_") or not _is_plain(key):
            continue
        size += len(json.dumps({key: value}, ensure_ascii=False).encode())
        if size > request_limits.MAX_METADATA_BYTES:
            break
        plain[key] = value
    return plain


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= MAX_METADATA_CHARS and is_storable(value)
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) and _is_plain(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and abs(value) < 2**63


def shorten_caption(value: Any) -> str:
    """Shorten a text to one line within the caption limit, without control characters."""
    text = "".join(
        c
        for c in str(value)[: 4 * request_limits.MAX_CAPTION_CHARS]
        if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs")
    )
    text = " ".join(text.split())
    if len(text) > request_limits.MAX_CAPTION_CHARS:
        text = (
            text[: request_limits.MAX_CAPTION_CHARS].rpartition(" ")[0]
            or text[: request_limits.MAX_CAPTION_CHARS]
        )
    return text
