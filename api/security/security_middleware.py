"""ASGI middleware that checks the form of requests and adds security headers; routes check scopes.

* State-changing requests that a browser sends for another site are refused (cross-site request forgery). Pages from
  configured origins may send them with a key.
* A server bound to loopback answers only loopback host names, so that no foreign name can resolve to it (DNS
  rebinding).
* Malformed addresses and bodies above the limit are refused before any handler reads them.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problem_details import problem_response
from api.request_middleware import HttpMiddleware, route_path
from api.security.authentication import Authenticator, is_loopback
from api.security.cross_origin import is_cross_site_change
from api.security.route_scopes import Forbidden, request_actor
from service.access.audit_log import acting_as
from service.access.credentials import KEY_PATTERN
from service.core import request_limits
from service.core.errors import CinestrataError, InvalidInput, NotFound, TooLarge, UnsupportedMediaType
from service.core.settings import Settings

MAX_FORM_FILES, MAX_FORM_FIELDS = 1, 8  # a form is kept in memory until it is complete

_APPEND_PATH = re.compile(r"/tasks/[^/]+/videos")
_MAX_TASK_BYTES = 128 * 1024**2  # a task of 100,000 videos with 1.3 KB each, as JSON
_MAX_BATCH_BYTES = 4 * 1024**2  # 256 long queries with long filters
_MAX_AGENT_BYTES = 4 * 1024**2  # a domain of 1,000 videos with captions; also the limit of the SDK
_MAX_EDIT_BYTES = 8 * 1024**2  # the longest transcript, captions and metadata of a video
_MAX_OTHER_BYTES = 64 * 1024  # small forms and JSON objects
_HEALTH_PATHS = {"/livez", "/readyz"}
_KEY_PARAMETERS = {"api_key", "api-key", "apikey", "x-api-key", "access_token", "key", "token"}
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",  # for responses that state no other: they may be an administrator's
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers without support for frame-ancestors
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SecurityMiddleware(HttpMiddleware):
    """Refuses requests that violate the access rules, and sets security headers on all responses."""

    def __init__(self, app: ASGIApp, settings: Settings, authenticator: Authenticator) -> None:
        super().__init__(app)
        self.authenticator = authenticator
        self.settings = settings
        self.loopback_only = is_loopback(settings.host)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and pass it on with the actor to record for its changes."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        request = Request(scope, receive)
        limit = body_limit(request, self.settings)
        try:
            self._check(request, limit)
            await self._check_shared_origin(request)
        except CinestrataError as error:
            await problem_response(request, error)(scope, receive, send_with_headers)
            return
        with acting_as(request_actor(request, None)):
            await self.app(scope, limit_body(receive, limit), send_with_headers)

    def _check(self, request: Request, limit: int) -> None:
        headers = request.headers
        path = route_path(request.scope)  # the decoded path, which the router matches
        host = _host_name(headers.get("host", ""))
        # Load balancers check the health with HTTP/1.0, without a name that could resolve to another address.
        is_health_check = path in _HEALTH_PATHS and "host" not in headers
        if self.loopback_only and not is_loopback(host) and not is_health_check:
            raise Forbidden(f"This server accepts requests for localhost only, not for {host[:100]!r}.")
        if is_cross_site_change(request) and headers.get("origin") not in self.settings.cors_origins:
            raise Forbidden("Pages from other sites can't send this request. Call the API from a program.")
        if any(character < " " for character in path):  # PostgreSQL accepts no NUL in a string
            raise NotFound("There is no resource at this address; it contains control characters.")
        _refuse_key_in_query(request, self.authenticator)
        _check_query_encoding(request.scope["query_string"])
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise UnsupportedMediaType(
                "Content-Encoding: Compressed bodies are not accepted; send the body as it is.",
                headers={"Accept-Encoding": "identity"},
            )
        check_content_length(headers.get("content-length", ""), limit)

    async def _check_shared_origin(self, request: Request) -> None:
        """Refuse changes by pages from allowed origins on a service without keys and users.

        There, every request has the scope admin, so an allowed origin could administer the service without a key.
        """
        if is_cross_site_change(request) and await self.authenticator.is_open():
            raise Forbidden(
                "Pages from other origins need an API key for this request, and this service has none: "
                "create one (cinestrata keys create NAME), and send it as X-API-Key."
            )


def _host_name(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _refuse_key_in_query(request: Request, authenticator: Authenticator) -> None:
    """Refuse a key in the URL, which browsers, proxies and logs store. The error does not contain the key."""
    query = request.scope["query_string"]
    if not query:
        return
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=None)
    for name, value in pairs:
        keys = [
            text
            for text in (name, value)
            if KEY_PATTERN.search(text) or authenticator.is_long_environment_key(text)
        ]
        is_named = name.lower() in _KEY_PARAMETERS
        if keys or is_named:
            parameter = "query" if name in keys else name
            authenticator.record_exposed_key(request, parameter, keys[0] if keys else value)
            raise InvalidInput.at(
                name if is_named else "query",
                "API keys in an address are not accepted, because browsers, proxies and logs store addresses.",
                "Send the key in the X-API-Key header, and revoke any key that was sent in an address.",
            )


def _check_query_encoding(query: bytes) -> None:
    """Refuse bytes that are not UTF-8; otherwise they would be searched as replacement characters."""
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        try:
            unquote_to_bytes(value.replace(b"+", b" ")).decode()
        except UnicodeDecodeError:
            raise InvalidInput.at(
                unquote_to_bytes(name).decode("utf-8", "replace"),
                "The value of this parameter is not valid UTF-8.",
                "Percent-encode it as UTF-8.",
            ) from None


def body_limit(request: Request, settings: Settings) -> int:
    """Return the maximum body size for a request, in bytes."""
    path = route_path(request.scope)
    if path == "/search":
        return _MAX_BATCH_BYTES
    if path in ("/mcp", "/mcp/"):
        return _MAX_AGENT_BYTES
    if path == "/search/clip":
        return request_limits.MAX_CLIP_BYTES + _MAX_OTHER_BYTES  # with the multipart headers
    if request.method == "DELETE":  # a list of video IDs
        return _MAX_TASK_BYTES
    if path.startswith("/uploads"):  # the preview, or bytes of a file
        return _MAX_TASK_BYTES if path == "/uploads/preview" else request_limits.MAX_VIDEO_BYTES
    if request.method == "PATCH":  # captions, metadata and transcript of a video
        return _MAX_EDIT_BYTES
    if path != "/tasks" and not _APPEND_PATH.fullmatch(path):
        return _MAX_OTHER_BYTES
    is_multipart = request.headers.get("content-type", "").startswith("multipart/")
    return settings.max_upload_bytes if is_multipart else _MAX_TASK_BYTES


def check_content_length(value: str, limit: int) -> None:
    """Raise TooLarge if the Content-Length header of a request exceeds a limit."""
    if not (value.isascii() and value.isdecimal()):
        return
    digits = value.lstrip("0") or "0"
    # The length is compared first, because int() refuses numbers with thousands of digits.
    if len(digits) > len(str(limit)) or int(digits) > limit:
        raise _too_large(limit)


def limit_body(receive: Receive, limit: int) -> Receive:
    """Wrap an ASGI receive channel so that a body above the limit raises :class:`TooLarge`.

    This covers chunked requests, which declare no size.
    """
    received = 0

    async def receive_within_limit() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
        return message

    return receive_within_limit


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body exceeds {limit} bytes; send less data, or split it into several requests.")
