"""Attempt to send a message to an endpoint: bounded in time and size, to allowed addresses only.

Addresses are checked when the connection is opened (:mod:`media.sources.guarded_network`), so neither DNS nor an
unusual address notation leads into the service's network. Redirects are not followed.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import httpcore
import httpx

from cinestrata_schemas.uris import redact_uri
from media.errors import MediaError, SourceOutage
from media.sources.guarded_network import (
    GuardedNetwork,
    answer_within,
    is_private_address,
    is_public_address,
    read_address,
)
from media.sources.media_source import SourcePrefix, SourceUri
from service.core.errors import InvalidInput
from service.core.settings import settings
from service.core.text_rules import CONTROL_CHARACTERS

ANSWER_SECONDS = 15.0  # from the response's first byte to the last byte read
MAX_ANSWER_BYTES = 2000
_TIMEOUTS = {"connect": 5.0, "read": 15.0, "write": 5.0, "pool": 5.0}  # seconds
_MAX_RETRY_AFTER = 86_400
_MAX_ADDRESSES = 3  # tried per host, each within the connection timeout
_PUBLIC = SourcePrefix.parse("https://")
_UNPRINTABLE = re.compile(rf"(?!\n)(?:[^\S ]|[{CONTROL_CHARACTERS}])")


@dataclass(frozen=True)
class Answer:
    """An endpoint's response, or the error of an attempt without one."""

    status: int | None  # HTTP status; None without a response
    text: str  # start of the body, or the error; printable characters
    retry_after: int = 0  # seconds in the Retry-After header; 0 without it
    is_forbidden: bool = False  # whether the address is refused, so that more attempts are pointless

    @property
    def is_success(self) -> bool:
        """Whether the endpoint accepted the message."""
        return self.status is not None and 200 <= self.status < 300


def check_url(url: str) -> None:
    """Check that messages may be sent to a URL; raise InvalidInput."""
    try:
        uri = _parse(url)
    except MediaError as error:
        raise InvalidInput.at(
            "url", f"{error}.", "Write an address such as https://hooks.example.com/path."
        ) from None
    prefix = _find_prefix(uri)
    if prefix is None:
        raise InvalidInput.at(
            "url",
            f"{redact_uri(url)[:500]!r} is not an allowed target of webhooks.",
            "Use a public https:// address, or let the operator allow a prefix with CINESTRATA_WEBHOOK_TARGETS.",
        )
    address = read_address(uri.host)
    if address is None or is_public_address(address):
        return
    if not (prefix.is_private and is_private_address(address)):
        raise InvalidInput.at(
            "url",
            f"The host {uri.host[:500]!r} is not a public address.",
            "Use a public https:// address, or let the operator allow a private one with private+ in "
            "CINESTRATA_WEBHOOK_TARGETS.",
        )


def send_message(url: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """POST a message and return the response; a network error is a response without a status."""
    try:
        uri = _parse(url)
        prefix = _find_prefix(uri)
    except MediaError:
        prefix = None
    if prefix is None:
        text = "The address is no longer an allowed target (CINESTRATA_WEBHOOK_TARGETS)."
        return Answer(None, text, is_forbidden=True)
    try:
        return _exchange(uri, prefix.is_private, headers, body)
    except SourceOutage as error:
        return Answer(None, printable(str(error)))
    except MediaError:
        return Answer(
            None,
            f"The host {uri.host!r} has an address that is not public. An operator can allow it with private+ in "
            "CINESTRATA_WEBHOOK_TARGETS.",
            is_forbidden=True,
        )
    except httpcore.TimeoutException:
        return Answer(None, "The endpoint did not respond in time.")
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError) as error:
        return Answer(None, printable(f"The connection fails ({type(error).__name__}: {error})."))


def printable(text: str) -> str:
    """Strip control and bidi-override characters from a text."""
    return _UNPRINTABLE.sub("\ufffd", text)[:MAX_ANSWER_BYTES]


def _parse(url: str) -> SourceUri:
    if not url.lower().startswith(("https://", "http://")):
        raise MediaError(f"{redact_uri(url)[:500]!r} does not begin with https:// or http://")
    return SourceUri.parse(url)


def _find_prefix(uri: SourceUri) -> SourcePrefix | None:
    allowed: Sequence[SourcePrefix] = [_PUBLIC, *map(SourcePrefix.parse, settings().webhook_targets)]
    matching = [prefix for prefix in allowed if prefix.contains(uri)]
    return max(matching, key=lambda prefix: prefix.is_private, default=None)


def _exchange(uri: SourceUri, allows_private: bool, headers: Mapping[str, str], body: bytes) -> Answer:
    url = httpx.URL(uri.text)
    target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
    sent = {
        "Host": url.netloc.decode("ascii"),
        "User-Agent": "cinestrata",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Accept-Encoding": "identity",
        **headers,
    }
    network = GuardedNetwork(allows_private, _resolve)
    # One pool per attempt: an endpoint never keeps a worker's connection open.
    with (
        answer_within(ANSWER_SECONDS),
        httpcore.ConnectionPool(
            ssl_context=_ssl_context(), network_backend=network, max_connections=1
        ) as pool,
        pool.stream(
            "POST", target, headers=list(sent.items()), content=body, extensions={"timeout": _TIMEOUTS}
        ) as response,
    ):
        text = printable(_read_beginning(response).decode("utf-8", "replace"))
        if 300 <= response.status < 400:
            text = "The endpoint redirects, and redirects are not followed."
        return Answer(response.status, text, _retry_after(response))


def _read_beginning(response: httpcore.Response) -> bytes:
    """Read the start of a body. The status decides about delivery, so a broken body is not a failure."""
    body = b""
    try:
        for chunk in response.iter_stream():
            body += chunk
            if len(body) >= MAX_ANSWER_BYTES:
                break
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
        pass
    return body[:MAX_ANSWER_BYTES]


def _retry_after(response: httpcore.Response) -> int:
    value = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
    return min(int(value), _MAX_RETRY_AFTER) if re.fullmatch(rb"\d{1,9}", value) else 0


def _resolve(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries[:_MAX_ADDRESSES]]


@lru_cache(maxsize=1)
def _ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # certifi, or SSL_CERT_FILE for a company's authority
