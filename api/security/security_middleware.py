"""ASGI middleware that checks the form of requests and adds security headers; routes check scopes.

* State-changing requests that a browser sends for another site are refused (cross-site request forgery). Pages from
  configured origins may send them with a key.
* A server bound to loopback answers only loopback host names, so that no foreign name can resolve to it (DNS
  rebinding).
* Malformed addresses and bodies above the limit are refused before any handler reads them.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problem_details import problem_response
from api.request_observer import HttpMiddleware
from api.request_paths import route_path
from api.security.authentication import Authenticator, is_loopback
from api.security.body_limits import body_limit, check_content_length, limit_body
from api.security.cross_origin import is_cross_site_change
from api.security.route_scopes import Forbidden, request_actor
from service.access.audit_log import acting_as
from service.access.credentials import KEY_PATTERN
from service.core.errors import CinestrataError, InvalidInput, NotFound, UnsupportedMediaType
from service.core.settings import Settings

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
        keys = [text for text in (name, value) if _contains_key(text, authenticator)]
        is_named = name.lower() in _KEY_PARAMETERS
        if keys or is_named:
            parameter = "query" if name in keys else name
            authenticator.record_exposed_key(request, parameter, keys[0] if keys else value)
            raise InvalidInput.at(
                name if is_named else "query",
                "API keys in an address are not accepted, because browsers, proxies and logs store addresses.",
                "Send the key in the X-API-Key header, and revoke any key that was sent in an address.",
            )


def _contains_key(text: str, authenticator: Authenticator) -> bool:
    return KEY_PATTERN.search(text) is not None or authenticator.is_long_environment_key(text)


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
