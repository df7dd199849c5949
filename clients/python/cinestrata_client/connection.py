"""Options of connections, the same for both clients."""

from __future__ import annotations

import os
from typing import Any

import httpx

__all__ = ["DEFAULT_URL", "connection_options"]

DEFAULT_URL = "http://127.0.0.1:8000"
_MAX_PORT = 65_535
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def connection_options(base_url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Return the options of an httpx client.

    Args:
        base_url: URL of the service.
        api_key: API key; None takes it from ``CINESTRATA_API_KEY``.
        timeout: Seconds until a request without an answer fails.

    Raises:
        ValueError: the URL is not one of http or https, or the key has characters that a header cannot have.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or (url.port or 0) > _MAX_PORT:
        raise ValueError(f"base_url: {base_url!r} is not a URL; write for example {DEFAULT_URL}")
    key = api_key or os.environ.get("CINESTRATA_API_KEY")
    if key and not (key.isascii() and key.isprintable()):  # the key itself is no part of the error
        raise ValueError("api_key: it has characters that a header cannot have, such as a line break")
    return {
        "base_url": base_url.rstrip("/"),
        "headers": {"X-API-Key": key} if key else {},
        "timeout": timeout,
        # A proxy from the environment cannot reach a service on this machine.
        "trust_env": url.host not in _LOOPBACK,
    }
