"""Identify senders by API key or session cookie; a loopback server without keys and users needs neither.

A key is sent as ``X-API-Key`` or ``Authorization: Bearer``. Browsers send the cookie of a session instead, because
``<video>`` and ``EventSource`` cannot send headers.

Browser cookies cannot be read by scripts. On HTTPS, their names start with ``__Host-``: browsers accept such a cookie
only from this host, so another subdomain cannot set it and sign a browser in as another user. They are ``Secure`` and
have the path ``/``, so the name contains the prefix of a proxy: two services on one host would otherwise replace each
other's cookies.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import parse_qsl, urlsplit

import structlog
from cachetools import LRUCache
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from cinestrata_schemas.choice_types import AccessScope
from service.access import credentials, failed_attempts
from service.access.credentials import OPEN_PRINCIPAL, Principal
from service.catalog.database import CatalogReads
from service.core.errors import CinestrataError, InvalidInput, TooManyRequests, Unavailable
from service.core.settings import Settings

SESSION_COOKIE = "cinestrata_session"
MIN_NETWORK_KEY_CHARS = 16  # of the key of the environment, outside loopback

_FRESH_SECONDS = 5.0  # a credential that was revoked by another process is refused after this time
# While the catalog is unreachable, searches accept a credential that was valid this long ago.
REMEMBERED_SECONDS = 600.0
_CACHED = 4096
_MAX_SECRET_CHARS = 1024
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_KEY_PARAMETERS = {"api_key", "api-key", "apikey", "x-api-key", "access_token", "key", "token"}
_ENVIRONMENT = Principal("environment", "CINESTRATA_API_KEY", "admin", "environment")

log = structlog.get_logger(__name__)


class Authenticator:
    """Identifies senders, and remembers valid credentials for a few seconds."""

    def __init__(self, settings: Settings, reads: CatalogReads | None = None) -> None:
        self._reads = reads or CatalogReads()
        self._key = settings.api_key.get_secret_value().encode() if settings.api_key else b""
        self._is_loopback = is_loopback(settings.host)
        self._principals: LRUCache[tuple[str, str], tuple[float, int, Principal]] = LRUCache(_CACHED)
        self._environment_addresses: LRUCache[str, bool] = LRUCache(_CACHED)
        self._protected: tuple[float, int, bool] | None = None
        self.limits = failed_attempts.AttemptLimits(settings.redis_client_url)
        self.failures = failed_attempts.FailedAttempts()

    @property
    def environment_key(self) -> str | None:
        """The key in the environment; None if there is none."""
        return self._key.decode() if self._key else None

    def is_environment_key(self, candidate: str) -> bool:
        """Return whether a text is the environment's key, compared in constant time."""
        return bool(self._key) and hmac.compare_digest(candidate.encode("utf-8", "replace"), self._key)

    async def is_open(self) -> bool:
        """Return whether requests need no credentials (loopback without keys and users); raises as :meth:`identify`."""
        if self._key or not self._is_loopback:
            return False
        at, changes = time.monotonic(), credentials.change_count
        cached = self._protected
        if cached is None or at - cached[0] > _FRESH_SECONDS or cached[1] != changes:
            try:
                is_protected = await self._reads.read_async(credentials.has_credentials)
            except Unavailable:
                if cached is None:
                    raise
                is_protected = cached[2]  # searches continue while the catalog is unreachable
            cached = self._protected = (at, changes, is_protected)
        return not cached[2]

    async def identify(self, request: Request, scope: AccessScope = "admin") -> Principal | None:
        """Return the sender of a request; None without valid credentials; raise TooManyRequests, Unavailable.

        While the catalog is unreachable, credentials that were valid :data:`REMEMBERED_SECONDS` ago suffice for a
        request with the scope ``search``.
        """
        if await self.is_open():
            return OPEN_PRINCIPAL
        key = _sent_key(request.headers)
        if key is not None:
            return await self.identify_key(key, client_address(request), scope)
        return await self.identify_browser(request, scope)

    async def identify_again(self, request: Request) -> Principal | None:
        """Identify a permitted request's sender again while its response is being sent; None if access has ended.

        A key revoked in the meantime is no failed attempt. The scope is ``search``; errors as for :meth:`identify`.
        """
        key = _sent_key(request.headers)
        if key is None or await self.is_open():
            return await self.identify(request, "search")
        return _ENVIRONMENT if self.is_environment_key(key) else await self._find_key(key, "search")

    async def identify_browser(self, request: Request, scope: AccessScope = "admin") -> Principal | None:
        """Return a session's owner; None without one and for changes by pages of other origins; as :meth:`identify`."""
        if is_cross_site_change(request):
            return None
        token = read_cookie(request, SESSION_COOKIE)
        if not token or len(token) > _MAX_SECRET_CHARS:
            return None
        return await self._find(
            ("session", token), lambda: credentials.find_session(token, self.environment_key), scope
        )

    async def identify_key(self, key: str, address: str, scope: AccessScope = "admin") -> Principal | None:
        """Return the owner of an API key; None for a wrong key. Scope and errors as for :meth:`identify`."""
        is_environment = self.is_environment_key(key)
        # A person chose the environment's key, so it may be guessable: attempts are limited per address.
        is_remembered_key = (
            failed_attempts.address_group(address) in self._environment_addresses
            if is_environment
            else ("key", credentials.digest(key)) in self._principals
        )
        match = credentials.KEY_PATTERN.fullmatch(key[:_MAX_SECRET_CHARS])
        key_id = match[1] if match else ""
        if not is_remembered_key:
            # Keys that were valid before are exempt, so that an attacker at the same address cannot lock them out.
            try:
                await run_in_threadpool(self.limits.check, failed_attempts.KEY_LIMIT, address, key_id)
            except TooManyRequests:
                self.failures.add("key.fail", address, names=key_id, refused=True)
                raise
        if is_environment:
            self._environment_addresses[failed_attempts.address_group(address)] = True
            return _ENVIRONMENT
        principal = await self._find_key(key, scope)
        if principal is None:
            self.failures.add("key.fail", address, names=key_id)
            await run_in_threadpool(self.limits.count_failure, failed_attempts.KEY_LIMIT, address, key_id)
        return principal

    def refuse_key_in_query(self, request: Request) -> None:
        """Refuse a key in the URL, which browsers, proxies and logs store. The error does not contain the key."""
        # A short key of the environment may occur in a search by chance.
        is_long = len(self._key) >= MIN_NETWORK_KEY_CHARS
        query = request.scope["query_string"].decode("latin-1")
        for name, value in parse_qsl(query, keep_blank_values=True, max_num_fields=None):
            keys = [
                text
                for text in (name, value)
                if credentials.KEY_PATTERN.search(text) or (is_long and self.is_environment_key(text))
            ]
            is_named = name.lower() in _KEY_PARAMETERS
            if keys or is_named:
                self._record_exposed_key(
                    request, "query" if name in keys else name, keys[0] if keys else value
                )
                raise InvalidInput.at(
                    name if is_named else "query",
                    "API keys in an address are not accepted, because browsers, proxies and logs store addresses.",
                    "Send the key in the X-API-Key header, and revoke any key that was sent in an address.",
                )

    def _record_exposed_key(self, request: Request, parameter: str, text: str) -> None:
        """Record in the audit log that a URL contains a key, or a parameter for keys, but not the ``text`` itself."""
        path = credentials.KEY_PATTERN.sub("[key]", request.url.path)
        if len(text) >= MIN_NETWORK_KEY_CHARS:
            path = path.replace(text, "[key]")
        match = credentials.KEY_PATTERN.search(text)
        key: tuple[str, str | None] | None = (match[1], credentials.digest(match[0])) if match else None
        if self.is_environment_key(text):
            key = _ENVIRONMENT.caller, None
        self.failures.add("key.exposed", client_address(request), key=key, paths=path, parameters=parameter)

    async def record_failures(self) -> None:
        """Record failed attempts in the audit log at intervals, until cancelled."""
        while True:
            await asyncio.sleep(failed_attempts.FLUSH_SECONDS)
            await run_in_threadpool(self.record_waiting_failures)

    def record_waiting_failures(self) -> None:
        """Record failed attempts now; if the catalog cannot be written, only count them in the log."""
        try:
            self.failures.flush()
        except Unavailable as error:
            log.warning("failed_attempts_not_recorded", error=error.detail)

    async def _find_key(self, key: str, scope: AccessScope) -> Principal | None:
        return await self._find(("key", key), lambda: credentials.find_key(key), scope)

    async def _find(
        self, sent: tuple[str, str], look_up: Callable[[], Principal | None], scope: AccessScope
    ) -> Principal | None:
        """Find the owner of a credential, in memory or by a lookup in a thread."""
        slot = (sent[0], credentials.digest(sent[1]))
        at, changes = time.monotonic(), credentials.change_count
        cached = self._principals.get(slot)
        if cached is not None and at - cached[0] <= _FRESH_SECONDS and cached[1] == changes:
            return cached[2]
        try:
            principal = await self._reads.read_async(look_up)
        except Unavailable:
            if scope != "search" or cached is None or cached[1] != changes or not _is_remembered(cached):
                raise
            return cached[2]
        if principal is None:
            self._principals.pop(slot, None)
        else:
            self._principals[slot] = (at, changes, principal)
        return principal


@lru_cache(maxsize=16)  # requests use few different hosts
def is_loopback(host: str) -> bool:
    """Return whether a host name or address refers to this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_network_credentials(settings: Settings) -> None:
    """Raise ValueError if a server that listens beyond loopback has no administrator, or a short key."""
    if is_loopback(settings.host):
        return
    if settings.api_key is not None:
        if len(settings.api_key.get_secret_value()) < MIN_NETWORK_KEY_CHARS:
            raise ValueError(
                f"CINESTRATA_API_KEY has fewer than {MIN_NETWORK_KEY_CHARS} characters, and CINESTRATA_HOST="
                f"{settings.host} opens the service to the network: set a longer key (openssl rand -hex 32), or "
                "listen on 127.0.0.1"
            )
        return
    try:
        has_admin = credentials.has_admin()
    except (CinestrataError, SQLAlchemyError):  # no catalog yet
        has_admin = False
    if not has_admin:
        raise ValueError(
            f"CINESTRATA_HOST={settings.host} opens the service to the network without an API key: set "
            "CINESTRATA_API_KEY (openssl rand -hex 32), create a key (cinestrata keys create NAME --scope admin), or "
            "listen on 127.0.0.1"
        )


def _is_remembered(entry: tuple[float, int, Principal]) -> bool:
    """Return whether a credential was valid a short time ago and has not expired since."""
    at, _, principal = entry
    if time.monotonic() - at > REMEMBERED_SECONDS:
        return False
    return principal.expires_at is None or principal.expires_at > datetime.now(UTC)


def is_cross_site_change(request: Request) -> bool:
    """Return whether a browser sends a state-changing request on behalf of another site's page.

    Programs send neither header that tells. If both are present, ``Sec-Fetch-Site`` decides: pages cannot forge it, and
    it stays correct behind a proxy that changes the host name.
    """
    if request.method in _SAFE_METHODS:
        return False
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site not in ("same-origin", "none")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc != request.headers.get("host")
    except ValueError:
        return True


def client_address(request: Request) -> str:
    """Return the client's network address as uvicorn reports it: only trusted proxies set ``X-Forwarded-For``."""
    return request.client.host if request.client else ""


def _sent_key(headers: Headers) -> str | None:
    """Return a request's key; None if it has none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    key = headers.get("x-api-key") or (token.strip() if kind.lower() == "bearer" else None)
    # Servers decode header bytes as Latin-1; this restores a key that was sent as UTF-8.
    return key.encode("latin-1", "replace").decode("utf-8", "replace") if key else None


def read_cookie(request: Request, name: str) -> str:
    """Return a cookie's content; empty if there is none."""
    return request.cookies.get(_sent_name(request, name), "")


def set_cookie(request: Request, response: Response, name: str, content: str, max_age: int) -> None:
    """Set a cookie for ``max_age`` seconds in the browser that sent a request."""
    response.set_cookie(
        _sent_name(request, name),
        content,
        max_age=max_age,
        httponly=True,
        samesite="lax",  # links from other sites may open pages; unsafe requests are refused by origin
        secure=_is_https(request),
    )


def delete_cookie(request: Request, response: Response, name: str) -> None:
    """Delete a cookie in the browser that sent a request."""
    response.delete_cookie(
        _sent_name(request, name), httponly=True, samesite="lax", secure=_is_https(request)
    )


def _sent_name(request: Request, name: str) -> str:
    name += request.app.state.settings.root_path.replace("/", ".")
    return f"__Host-{name}" if _is_https(request) else name


def _is_https(request: Request) -> bool:
    return request.scope.get("scheme") == "https"
