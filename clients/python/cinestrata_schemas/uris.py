"""URIs of videos: which are remote, and how they are shown without credentials."""

from __future__ import annotations

import re

_SOURCE = re.compile(r"(s3|gs|https?)://", re.IGNORECASE)
_USER = re.compile(r"(://)[^/?#]*@")


def is_source_uri(uri: str) -> bool:
    """Check whether a URI names a remote file."""
    return _SOURCE.match(uri) is not None


def redact_uri(uri: str) -> str:
    """Redact a URI for logs, errors and responses: its user, and its query, which may contain a token."""
    text = _USER.sub(r"\1***@", uri)
    if text[:4].lower() == "http" and "?" in text:
        text = text.partition("?")[0] + "?***"
    return text
