"""Who may do what, and from where.

* With an API key configured, every route but health and static files wants it: as ``X-API-Key``, as
  ``Authorization: Bearer``, or as the cookie of the sign-in, for ``<video>`` and ``EventSource`` send no headers.
* State-changing requests that a browser sends for another site are refused.
* Bound to loopback, only loopback names are answered, so a foreign name cannot be made to point here (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem
from service.errors import CinestrataError, TooLarge, Unauthorized
from service.settings import Settings

__all__ = ["COOKIE", "Guard", "caller_of", "is_loopback", "session_token"]

COOKIE = "cinestrata_session"
_OPEN = ("/livez", "/readyz", "/static/", "/login", "/plotly.js", "/favicon.ico")
_PAGES = ("/", "/admin")  # they lead to the sign-in by themselves
_SAFE = {"GET", "HEAD", "OPTIONS"}
_MAX_JSON = 64 * 1024**2
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "media-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Forbidden(CinestrataError):
    """The request comes from where it must not."""

    status = 403
    title = "Forbidden"


class Guard:
    """ASGI middleware: refuses what must not pass, and sets the security headers on what does."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self.loopback_only = is_loopback(settings.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent_headers = False

        async def with_headers(message: Message) -> None:
            nonlocal sent_headers
            if message["type"] == "http.response.start" and not sent_headers:
                sent_headers = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        try:
            self._check(request)
        except CinestrataError as error:
            await problem(request, error)(scope, receive, with_headers)
            return
        await self.app(scope, _bounded(receive, self._limit(request)), with_headers)

    def _check(self, request: Request) -> None:
        headers = request.headers
        host = _host_name(headers.get("host", ""))
        if self.loopback_only and not is_loopback(host):
            raise Forbidden(f"This server answers to localhost only, not to {host[:100]!r}.")
        if request.method not in _SAFE and _foreign(headers):
            raise Forbidden("A page of another site must not send this. Call the API from your own program.")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limit(request):
            raise TooLarge(f"The body has {length} bytes; at most {self._limit(request)} are accepted.")
        path = request.url.path
        if path.startswith(_OPEN) or path in _PAGES:
            return
        if caller_of(request, self.settings) is None:
            raise Unauthorized(
                "An API key is needed: send it as X-API-Key, or sign in at /login.",
                headers={"WWW-Authenticate": 'Bearer realm="Cinestrata"'},
            )

    def _limit(self, request: Request) -> int:
        multipart = request.headers.get("content-type", "").startswith("multipart/")
        return self.settings.max_upload_bytes if multipart else _MAX_JSON


def caller_of(request: Request, settings: Settings) -> str | None:
    """A stable name of who asks: empty without keys, a digest with the right key, None with none or a wrong one."""
    if settings.api_key is None:
        return ""
    key = settings.api_key.get_secret_value()
    given = request.headers.get("x-api-key") or _bearer(request.headers) or ""
    if given and hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode()):
        return session_token(settings)[:16]
    if hmac.compare_digest(
        request.cookies.get(COOKIE, "").encode("utf-8", "surrogateescape"), session_token(settings).encode()
    ):
        return session_token(settings)[:16]
    return None


def session_token(settings: Settings) -> str:
    """What the session cookie holds: it proves that its bearer knew the key, and does not give it away."""
    key = settings.api_key.get_secret_value() if settings.api_key else ""
    return hmac.new(key.encode(), b"cinestrata dashboard session", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    if host.lower() in ("localhost", "testserver"):
        return host.lower() == "localhost"
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
    """Whether a browser says that another site makes this request. Programs send neither header."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _bounded(receive: Receive, limit: int) -> Receive:
    """The same body, cut off with an error when it grows beyond the limit (chunked requests state no length)."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                raise TooLarge(f"The body is larger than {limit} bytes.")
        return message

    return bounded
