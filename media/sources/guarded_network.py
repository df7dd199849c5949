"""Guarded connections: only to checked addresses, and with a limit on the time until the headers have arrived.

A URL must not reach the server's own network. A host name is resolved once per connection, all of its addresses are
checked, and the connection is opened to one of them. A name server that answers differently a moment later (DNS
rebinding) has no effect. Neither has the notation of an address (decimal, octal, IPv6 with an embedded IPv4 address),
because the resolver's result is checked, not the text of the URL.

An HTTP client's read timeout counts from the last byte, so a server that sends its headers byte by byte, or endless
interim responses, would occupy a thread forever.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ssl import SSLContext
from typing import Any

import httpcore

from media.errors import MediaError, SourceOutage

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Iterable[str]]

# Cloud services outside the link-local ranges that give credentials to every process on a machine.
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Where these addresses contain the IPv4 address is up to the network's translators (RFC 8215, RFC 7915).
_LOCALLY_TRANSLATED = (ipaddress.IPv6Network("64:ff9b:1::/48"), ipaddress.IPv6Network("::ffff:0:0:0/96"))
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_SHARED = ipaddress.IPv4Network("100.64.0.0/10")
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")


def is_public_address(address: Address) -> bool:
    """Check whether an address belongs to a host on the public internet."""
    return all(
        embedded.is_global
        and not embedded.is_multicast
        and not (isinstance(embedded, ipaddress.IPv6Address) and embedded.is_site_local)
        and embedded not in _METADATA
        and not any(embedded in network for network in _LOCALLY_TRANSLATED)
        for embedded in _with_embedded(address)
    )


def read_address(host: str) -> Address | None:
    """Parse a URL's host as an IP address, in any notation that resolvers accept; None for a host name.

    ``localhost`` and the names below it mean this machine (RFC 6761), and are read as 127.0.0.1.
    """
    bare = host.strip("[]").partition("%")[0].rstrip(".").lower()
    if bare == "localhost" or bare.endswith(".localhost"):
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(bare))  # 2130706433, 0x7f.1
    except (OSError, UnicodeError, ValueError):
        return None


def is_private_address(address: Address) -> bool:
    """Check whether an address belongs to a private network or to this machine.

    Metadata services, link-local, multicast and reserved addresses are neither public nor private: nothing allows them.
    """
    return all(embedded not in _METADATA and _is_local(embedded) for embedded in _with_embedded(address))


def _is_local(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        is_rfc1918 = address.is_private and not (
            address.is_reserved or address in ipaddress.IPv4Network("0.0.0.0/8")
        )
        return address.is_loopback or ((is_rfc1918 or address in _SHARED) and not address.is_link_local)
    return address.is_loopback or address in _UNIQUE_LOCAL


def _with_embedded(address: Address) -> list[Address]:
    """List the addresses to check: the address itself, and an IPv4 address that a mapped or tunneled form embeds."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    last_bits = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64:
        return [last_bits]
    if address in _COMPATIBLE and int(address) > 1:
        return [address, last_bits]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    if address.teredo is not None:
        return [address, *address.teredo]
    return [address]


def _resolve(host: str, port: int) -> list[str]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in entries]


class GuardedNetwork(httpcore.NetworkBackend):
    """Network of an HTTP client that connects only to allowed addresses; reads end with :func:`answer_within`."""

    def __init__(self, allows_private: bool, resolve: Resolver = _resolve) -> None:
        self.allows_private = allows_private
        self._resolve = resolve
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Resolve a host, check its addresses, and connect to the first that accepts the connection.

        Raises MediaError for an address that is not allowed, SourceOutage if there is none, or httpcore's errors.
        """
        try:
            # Zones (%eth0) are for link-local addresses, which are refused with or without one.
            addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in self._resolve(host, port)]
        except (OSError, UnicodeError, ValueError) as error:
            raise SourceOutage(f"The host {host!r} cannot be resolved.") from error
        for address in addresses:
            if not (is_public_address(address) or (self.allows_private and is_private_address(address))):
                raise MediaError(
                    f"the host {host!r} has an address that is not public; an operator can allow hosts in private "
                    "networks with private+ in CINESTRATA_SOURCES"
                )
        failure: Exception = httpcore.ConnectError("the host has no address")
        for address in addresses:
            try:
                stream = self._network.connect_tcp(str(address), port, timeout, local_address, socket_options)
                return _TimedStream(stream)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.NetworkStream:
        """Refuse, since no URL may name a socket of this machine."""
        raise httpcore.UnsupportedProtocol("Unix sockets are not allowed.")


_deadline: ContextVar[float | None] = ContextVar("answer_deadline", default=None)


@contextmanager
def answer_within(seconds: float) -> Iterator[None]:
    """Limit the total time of all reads from :class:`GuardedNetwork` connections in the ``with`` statement."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


class _TimedStream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        deadline = _deadline.get()
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise httpcore.ReadTimeout("the headers are incomplete")
            timeout = left if timeout is None else min(timeout, left)
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
