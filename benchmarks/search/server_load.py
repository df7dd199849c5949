"""A server of its own process under clients: how many searches a second it answers, what each of them takes of a
processor, and what memory the server takes.

The clients share the server's cores, so they do as little as they can: they write requests and read answers as bytes.
A client of the kind that programs use takes ten times as long for each, and would be measured beside the server.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlencode, urlsplit

import httpx

from service.core.settings import Settings

__all__ = ["Load", "Memory", "load", "memory", "serving"]

_START_SECONDS = 300.0
_STALLED_SECONDS = 60.0
_K = 10
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class Memory:
    """Of a process, in bytes.

    Attributes:
        mapped: pages of files that are in memory, which processes that map the same files share.
        own: all others, which no other process has.
    """

    mapped: int
    own: int


@dataclass(frozen=True)
class Load:
    """What searches of some clients cost.

    Attributes:
        rate: searches a second.
        server, client: milliseconds of processor time a search, of all threads. Unlike the rate they hardly depend on
            what else the machine does.
    """

    rate: float
    server: float
    client: float


@contextmanager
def serving(configured: Settings) -> Iterator[tuple[str, int]]:
    """A server for a library: its address and process id. It stops at the end of the ``with``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "CINESTRATA_DATA_DIR": str(configured.data_dir),
        "CINESTRATA_DATABASE_URL": configured.database_url,  # all libraries share a catalog
        "CINESTRATA_BACKBONE": configured.backbone,
    }
    argv = [sys.executable, "-m", "cli.main", "serve", "--port", str(port)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_ready(url, server)
            yield url, server.pid
        finally:
            server.terminate()


def load(url: str, pid: int, texts: Sequence[str], clients: int) -> Load:
    """So many clients, each of whom asks again over its connection as soon as it has its answer.

    Args:
        pid: of the server.

    Raises:
        RuntimeError: a search was refused.
        TimeoutError: they were not all answered in a minute and a tenth of a second each.
    """
    begun, server, client = time.perf_counter(), _processor_seconds(pid), time.process_time()
    asyncio.run(asyncio.wait_for(_ask_all(urlsplit(url), texts, clients), _STALLED_SECONDS + len(texts) / 10))
    took = time.perf_counter() - begun
    each = 1000 / len(texts)
    return Load(
        rate=len(texts) / took,
        server=each * (_processor_seconds(pid) - server),
        client=each * (time.process_time() - client),
    )


def memory(pid: int) -> Memory:
    """What a process has in memory now."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()[:1]
    return Memory(mapped=1024 * int(fields["RssFile"][0]), own=1024 * int(fields["RssAnon"][0]))


def _processor_seconds(pid: int) -> float:
    """Of a process and all its threads since it began."""
    # The name, in parentheses, may hold anything; user and system time are the 14th and 15th field.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _ask_all(url: SplitResult, texts: Sequence[str], clients: int) -> None:
    left = iter(texts)

    async def ask() -> None:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        for text in left:
            query = urlencode({"q": text, "k": _K})
            writer.write(f"GET /search?{query} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
            head = await reader.readuntil(_HEAD_END)
            length = _LENGTH.search(head)
            if not head.startswith(b"HTTP/1.1 200 ") or length is None:
                raise RuntimeError(f"a search was refused: {head.decode('latin-1')}")
            body = await reader.readexactly(int(length[1]))
            if not (body.startswith(b'{"query":') and body.endswith(b"}")):
                raise RuntimeError(f"this is no answer: {body[:200]!r}")
        writer.close()

    await asyncio.gather(*(ask() for _ in range(clients)))


def _wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            told = httpx.get(f"{url}/readyz", trust_env=False).json()
            if told["ready"] and told["generation"]:
                return
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.1)
    raise RuntimeError("the server did not become ready")
