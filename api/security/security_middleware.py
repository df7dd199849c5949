"""Who may do what, and from where.

* With an API key configured, every route but health and static files wants it: ``X-API-Key``,
  ``Authorization: Bearer``, or the cookie that the sign-in page sets: ``<video>`` and ``EventSource`` cannot send
  headers.
* State-changing requests that a browser sends for another site are refused.
* Bound to loopback, only loopback names are answered, so a foreign name cannot be made to point here (DNS rebinding).
* Addresses that no client of good faith sends, and bodies above the limit, are refused before anything reads them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from functools import lru_cache
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problem_details import problem
from service.core.errors import CinestrataError, InvalidInput, NotFound, TooLarge, Unauthorized
from service.core.settings import Settings

__all__ = [
    "SESSION_COOKIE",
    "SecurityMiddleware",
    "identify_caller",
    "is_loopback",
    "is_valid_key",
    "session_token",
]

SESSION_COOKIE = "cinestrata_session"
_OPEN = ("/livez", "/readyz", "/static/", "/login", "/plotly.js", "/favicon.ico")
_PAGES = ("/", "/admin")  # they lead to the sign-in by themselves
_SAFE = {"GET", "HEAD", "OPTIONS"}
_MAX_TASK = 64 * 1024**2  # a task of 20,000 videos with long captions, as JSON
_MAX_BATCH = 4 * 1024**2  # 256 long queries with long filters
_MAX_OTHER = 64 * 1024  # no other request has a body worth mentioning
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Forbidden(CinestrataError):
    """The request comes from where it must not."""

    status = 403
    title = "Forbidden"


class SecurityMiddleware:
    """ASGI middleware: refuses what must not pass, and sets the security headers on what does."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self.loopback_only = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        limit = self._limit(request)
        try:
            self._check(request, limit)
        except CinestrataError as error:
            await problem(request, error)(scope, receive, with_headers)
            return
        await self.app(scope, _bounded(receive, limit), with_headers)

    def _check(self, request: Request, limit: int) -> None:
        headers = request.headers
        host = _host_name(headers.get("host", ""))
        if self.loopback_only and not is_loopback(host):
            raise Forbidden(f"This server answers to localhost only, not to {host[:100]!r}.")
        if request.method not in _SAFE and _foreign(headers):
            raise Forbidden("A page of another site must not send this. Call the API from your own program.")
        path = request.scope["path"]  # what the router looks at
        if (
            not path.startswith(_OPEN)
            and path not in _PAGES
            and identify_caller(request, self.settings) is None
        ):
            raise Unauthorized(
                "An API key is needed: send it as X-API-Key, or sign in at /login.",
                headers={"WWW-Authenticate": 'Bearer realm="Cinestrata"'},
            )
        if any(character < " " for character in path):  # PostgreSQL, for one, takes no NUL in a text
            raise NotFound("There is nothing at this address; it holds control characters.")
        _check_query(request.scope["query_string"])
        if _exceeds(headers.get("content-length", ""), limit):
            raise _too_large(limit)

    def _limit(self, request: Request) -> int:
        path = request.scope["path"]
        if path == "/search":
            return _MAX_BATCH
        if path == "/search/clip":
            return self.settings.max_clip_bytes + _MAX_OTHER  # what a form has around it
        if request.method == "DELETE":  # a list of ids
            return _MAX_TASK
        if path != "/tasks":
            return _MAX_OTHER
        multipart = request.headers.get("content-type", "").startswith("multipart/")
        return self.settings.max_upload_bytes if multipart else _MAX_TASK


def identify_caller(request: Request, settings: Settings) -> str | None:
    """A stable name of who asks: empty without keys, a digest with the right key, None with none or a wrong one."""
    if settings.api_key is None:
        return ""
    token = session_token(settings)
    headers = request.headers
    given = headers.get("x-api-key") or _bearer(headers) or ""
    # Servers hand header bytes over as Latin-1; a key that was sent as UTF-8 comes back by undoing that.
    if is_valid_key(given.encode("latin-1", "replace"), settings):
        return token[:16]
    cookie = request.cookies.get(SESSION_COOKIE, "").encode("utf-8", "replace")
    return token[:16] if hmac.compare_digest(cookie, token.encode()) else None


def is_valid_key(given: bytes, settings: Settings) -> bool:
    """Whether it is the configured API key; takes as long for a near miss as for a wide one."""
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    return bool(key) and hmac.compare_digest(given, key.encode())


def session_token(settings: Settings) -> str:
    """What the session cookie holds: it proves that its bearer knew the key, and does not give it away."""
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    return hmac.new(key.encode(), b"cinestrata dashboard session", hashlib.sha256).hexdigest()


@lru_cache(maxsize=16)  # every request names one, and nearly always the same
def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _foreign(headers: Headers) -> bool:
    """Whether a browser says that another site makes this request. Programs send neither header.

    Where both are sent, ``Sec-Fetch-Site`` decides: pages cannot forge it, and it stays right behind a proxy that
    changes the host's name.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != headers.get("host")
    except ValueError:
        return True


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _check_query(raw: bytes) -> None:
    """Refuses bytes that are no text, which would otherwise be searched for as replacement characters."""
    for part in raw.split(b"&"):
        name, _, value = part.partition(b"=")
        try:
            unquote_to_bytes(value.replace(b"+", b" ")).decode()
        except UnicodeDecodeError:
            raise InvalidInput.at(
                unquote_to_bytes(name).decode("utf-8", "replace"),
                "The bytes of this parameter are no text.",
                "Percent-encode it as UTF-8.",
            ) from None


def _exceeds(content_length: str, limit: int) -> bool:
    if not (content_length.isascii() and content_length.isdecimal()):
        return False
    # int() refuses numbers of thousands of digits.
    return len(content_length.lstrip("0")) > len(str(limit)) or int(content_length) > limit


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes; send less, or split it into several requests.")


def _bounded(receive: Receive, limit: int) -> Receive:
    """The same body, cut off with an error when it grows beyond the limit (chunked requests state no length)."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
        return message

    return bounded
