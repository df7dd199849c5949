"""Files on web servers, read over connections that ``GuardedNetwork`` checks.

Every redirect is checked like the first URL. Credentials, cookies and the environment's proxies are not used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property

import httpcore
import httpx

from media.errors import InconsistentFile, MediaError, RangeOutside, SourceOutage
from media.sources.guarded_network import GuardedNetwork, answer_within
from media.sources.media_source import ByteRange, RemoteStream, SourcePrefix, SourceUri

MAX_REDIRECTS = 5
_TIMEOUTS = {"connect": 10.0, "read": 30.0, "write": 10.0, "pool": 10.0}  # seconds; read: for each part
ANSWER_SECONDS = 30.0  # until all headers have arrived
_MAX_CONNECTIONS = 64  # a paused player keeps its connection
_REDIRECTS = (301, 302, 303, 307, 308)
_OUTAGES = (408, 421, 425, 429)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class WebServer:
    """Source of files on web servers."""

    def __init__(
        self,
        find_prefix: Callable[[SourceUri], SourcePrefix],
        network: Callable[[bool], httpcore.NetworkBackend] = GuardedNetwork,
    ) -> None:
        self._find_prefix = find_prefix
        self._network = network

    @cached_property
    def _pools(self) -> dict[bool, httpcore.ConnectionPool]:
        context = httpx.create_ssl_context()  # certifi, or SSL_CERT_FILE for a company's own authority
        return {
            is_private: httpcore.ConnectionPool(
                ssl_context=context,
                network_backend=self._network(is_private),
                max_connections=_MAX_CONNECTIONS,
                max_keepalive_connections=8,
                keepalive_expiry=15.0,
            )
            for is_private in (False, True)
        }

    @contextmanager
    def open(self, uri: SourceUri, part: ByteRange | None = None) -> Iterator[RemoteStream]:
        """Open a file, following redirects within allowed sources; see :class:`MediaSource`."""
        target = uri
        for _ in range(MAX_REDIRECTS + 1):
            with self._respond(target, part) as response:
                if response.status in _REDIRECTS:
                    target = _follow(target, _header(response, "location"))
                    continue
                _check_status(response, uri)
                if response.status == 206 and part is None:
                    raise MediaError(f"{uri.shown}: the server sends a part of the file instead of all of it")
                yield _stream(response, uri)
                return
        raise MediaError(f"{uri.shown} is redirected more than {MAX_REDIRECTS} times; give its final address")

    @contextmanager
    def _respond(self, target: SourceUri, part: ByteRange | None) -> Iterator[httpcore.Response]:
        pool = self._pools[self._find_prefix(target).is_private]
        url = httpx.URL(target.text)
        headers: dict[str | bytes, str | bytes] = {
            "Host": url.netloc,
            "User-Agent": "cinestrata",
            "Accept-Encoding": "identity",
        }
        if part is not None:
            headers["Range"] = f"bytes={_text(part.first)}-{_text(part.last)}"
        with _translate_errors(target):
            exchange = pool.stream(
                "GET",
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=headers,
                extensions={"timeout": _TIMEOUTS},
            )
            with answer_within(ANSWER_SECONDS):
                response = exchange.__enter__()
        try:
            yield response
        finally:
            with suppress(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
                exchange.__exit__(None, None, None)


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


@contextmanager
def _translate_errors(uri: SourceUri) -> Iterator[None]:
    """Raise SourceOutage for connection errors."""
    try:
        yield
    except httpcore.TimeoutException as error:
        raise SourceOutage(f"{uri.origin} does not respond in time.") from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise SourceOutage(f"The certificate of {uri.origin} is not trusted.") from error
        raise SourceOutage(f"The connection to {uri.origin} fails ({type(error).__name__}).") from error


def _follow(current: SourceUri, location: str | None) -> SourceUri:
    """Resolve the target of a redirect; raise MediaError if it is missing or invalid."""
    if not location:
        raise MediaError(f"{current.shown} is redirected without a target")
    if re.search(r"[\x00-\x20\x7f\\]|(^|/)\.\.?(/|$)", location.partition("?")[0]):
        raise MediaError(f"{current.shown} is redirected to a malformed address")
    try:
        target = str(httpx.URL(current.text).join(location).copy_with(fragment=None))
    except (httpx.InvalidURL, ValueError) as error:
        raise MediaError(f"{current.shown} is redirected to a malformed address") from error
    if not target.lower().startswith(("http://", "https://")):
        raise MediaError(f"{current.shown} is redirected to another protocol; only HTTP(S) is followed")
    return SourceUri.parse(target)


def _check_status(response: httpcore.Response, uri: SourceUri) -> None:
    status = response.status
    if status >= 500 or status in _OUTAGES:
        raise SourceOutage(f"{uri.origin} answers with status {status}.", _retry_after(response))
    if status in (404, 410):
        raise MediaError(f"{uri.shown} does not exist on its server (status {status})")
    if status in (401, 403):
        raise MediaError(f"{uri.shown} is forbidden by its server (status {status}); let the service read it")
    if status == 416:
        raise RangeOutside(f"{uri.shown} has no bytes in the requested range")
    if status not in (200, 206):
        raise MediaError(f"{uri.shown} cannot be read: the server answers with status {status}")
    if (_header(response, "content-encoding") or "identity").lower() != "identity":
        raise MediaError(f"{uri.shown} is sent compressed, which the request does not allow")


def _stream(response: httpcore.Response, uri: SourceUri) -> RemoteStream:
    stated = _header(response, "content-length")
    length = int(stated) if stated is not None and re.fullmatch(r"\d{1,18}", stated) else None
    start, total, is_partial = 0, length, response.status == 206
    if is_partial:
        match = _CONTENT_RANGE.fullmatch(_header(response, "content-range") or "")
        if match is None:
            raise MediaError(f"{uri.shown}: the server answers with a malformed range")
        start, length = int(match[1]), int(match[2]) - int(match[1]) + 1
        total = None if match[3] == "*" else int(match[3])
    version = _header(response, "etag") or _header(response, "last-modified")
    return RemoteStream(_chunks(response, uri), total, start, length, is_partial, version)


def _chunks(response: httpcore.Response, uri: SourceUri) -> Iterator[bytes]:
    received = 0
    try:
        for chunk in response.iter_stream():
            received += len(chunk)
            yield chunk
    except httpcore.RemoteProtocolError as error:
        raise InconsistentFile(
            f"{uri.shown} ends after {received} bytes, before the end that the server announced"
        ) from error
    except httpcore.TimeoutException as error:
        raise SourceOutage(f"{uri.origin} stops sending in the middle of a file.") from error
    except (httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise SourceOutage(f"The connection to {uri.origin} breaks ({type(error).__name__}).") from error


def _header(response: httpcore.Response, name: str) -> str | None:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == wanted), None)


def _retry_after(response: httpcore.Response) -> float | None:
    """Convert a Retry-After header, which is a number or a date, to seconds."""
    text = (_header(response, "retry-after") or "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    seconds = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None
