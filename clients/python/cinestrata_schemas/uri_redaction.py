"""URIs without credentials."""

from __future__ import annotations

import re

_USER = re.compile(r"(://)[^/?#]*@")


def redact_uri(uri: str) -> str:
    """Strip credentials from a URI for logs, errors and responses: the user, and the query, which may
    contain a token.
    """
    text = _USER.sub(r"\1***@", uri)
    if text[:4].lower() == "http" and "?" in text:
        text = text.partition("?")[0] + "?***"
    return text
