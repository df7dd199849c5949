"""Problem documents as the service answers with them."""

from __future__ import annotations

from typing import Any

import httpx


def problem(status: int, detail: str, *fields: dict[str, str], **headers: str) -> httpx.Response:
    """An error response of the service with its invalid fields."""
    document: dict[str, Any] = {
        "type": "urn:cinestrata:problem:test",
        "title": "Test",
        "status": status,
        "detail": detail,
        "instance": "/v1/test",
        "errors": list(fields),
    }
    return httpx.Response(status, json=document, headers=headers)
