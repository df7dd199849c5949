"""Connections to checked addresses: ranges, embedded and unusual notations, rebinding."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from media import MediaError
from media.errors import SourceOutage
from media.sources.guarded_network import GuardedNetwork, is_private_address, is_public_address
from tests.web_files import WebFiles

NEVER = [
    "169.254.169.254",
    "168.63.129.16",
    "100.100.100.200",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.192",
    "fe80::1",
    "fd00:ec2::254",
    "ff02::1",
    "::",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "64:ff9b:1:a9fe:a9:fe00:808:808",  # of a translator with a prefix of 48 bits: 169.254.169.254
    "::ffff:0:169.254.169.254",
]
PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "::1",
    "fd12::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
]


PUBLIC = ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]


@pytest.mark.parametrize(
    ("texts", "is_public", "is_private"),
    [(NEVER, False, False), (PRIVATE, False, True), (PUBLIC, True, False)],
)
def test_private_addresses_need_permission_and_reserved_ones_are_never_allowed(
    texts: list[str], is_public: bool, is_private: bool
) -> None:
    for address in map(ipaddress.ip_address, texts):
        assert (is_public_address(address), is_private_address(address)) == (is_public, is_private), address


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "localhost", "::1", "::ffff:127.0.0.1"],
)
def test_notations_of_this_machine_are_refused(host: str) -> None:
    with pytest.raises((MediaError, SourceOutage)):
        GuardedNetwork(allows_private=False).connect_tcp(host, 80, timeout=1)


def test_host_with_one_forbidden_address_is_refused() -> None:
    network = GuardedNetwork(False, resolve=lambda host, port: ["1.1.1.1", "10.0.0.1"])
    with pytest.raises(MediaError, match=r"'mixed\.example' has an address that is not public"):
        network.connect_tcp("mixed.example", 80, timeout=1)


def test_connection_uses_the_address_that_was_checked(web_files: WebFiles) -> None:
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    network = GuardedNetwork(True, resolve=lambda host, port: next(answers))
    stream = network.connect_tcp("rebinding.example", web_files.port, timeout=5)
    connection: socket.socket = stream.get_extra_info("socket")
    assert connection.getpeername()[0] == "127.0.0.1"
    stream.close()
    with pytest.raises(MediaError, match="not public"):  # the name server changes its answer
        network.connect_tcp("rebinding.example", web_files.port, timeout=5)


def test_unknown_host_is_an_outage() -> None:
    def fail(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with pytest.raises(SourceOutage, match="cannot be resolved"):
        GuardedNetwork(False, resolve=fail).connect_tcp("example.com", 443)
