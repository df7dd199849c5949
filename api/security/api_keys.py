"""API key and session cookie: how a request proves that its sender knows the key.

A key is sent as ``X-API-Key`` or ``Authorization: Bearer``. Browsers send the session cookie of the sign-in page
instead, because ``<video>`` and ``EventSource`` cannot send headers.
"""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.requests import Request

from service.access.principal import OPEN_PRINCIPAL, Principal
from service.core.settings import Settings

__all__ = ["SESSION_COOKIE", "identify", "is_valid_key", "session_token"]

SESSION_COOKIE = "cinestrata_session"

_ENVIRONMENT = Principal("environment", "CINESTRATA_API_KEY", "admin", "environment")


def identify(request: Request, settings: Settings) -> Principal | None:
    """The sender of a request; None without a valid key or session. Without a configured key, all are permitted."""
    if settings.api_key is None:
        return OPEN_PRINCIPAL
    token = session_token(settings)
    headers = request.headers
    key = headers.get("x-api-key") or _bearer_token(headers) or ""
    # Servers decode header bytes as Latin-1; encoding them again restores a key that was sent as UTF-8.
    if is_valid_key(key.encode("latin-1", "replace"), settings):
        return _ENVIRONMENT
    cookie = request.cookies.get(SESSION_COOKIE, "").encode("utf-8", "replace")
    return _ENVIRONMENT if hmac.compare_digest(cookie, token.encode()) else None


def is_valid_key(candidate: bytes, settings: Settings) -> bool:
    """Whether the candidate is the configured API key, compared in constant time."""
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    return bool(key) and hmac.compare_digest(candidate, key.encode())


def session_token(settings: Settings) -> str:
    """The value of the session cookie: it proves knowledge of the key without revealing the key."""
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    return hmac.new(key.encode(), b"cinestrata dashboard session", hashlib.sha256).hexdigest()


def _bearer_token(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
