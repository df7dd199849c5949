"""Load a server process: searches per second, processor time per search, and memory.

Clients share the cores with the server, so they only write requests and read responses as bytes. A regular HTTP client
takes ten times as long per request, which would distort the measurement.
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

_START_SECONDS = 300.0
_STALLED_SECONDS = 60.0
_K = 10
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True)
class ProcessMemory:
    """A process's resident memory in bytes.

    Attributes:
        mapped: Resident pages of files; processes that map the same files share them.
        own: All other resident pages, which are private to the process.
    """

    mapped: int
    own: int


@dataclass(frozen=True)
class ServerLoad:
    """Throughput and processor time when several clients search.

    Attributes:
        rate: Searches per second.
        server: The server's processor time per search in milliseconds, over all threads. Unlike the rate, it hardly
            depends on the machine's other load.
        client: The clients' processor time per search in milliseconds.
    """

    rate: float
    server: float
    client: float


@contextmanager
def running_server(configured: Settings) -> Iterator[tuple[str, int]]:
    """Run a server for a library during the ``with`` block; yields its URL and process ID."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "CINESTRATA_DATA_DIR": str(configured.data_dir),
        "CINESTRATA_DATABASE_URL": configured.database_url,  # all libraries share one catalog
    }
    if configured.backbone is not None:
        environment["CINESTRATA_BACKBONE"] = configured.backbone
    argv = [sys.executable, "-m", "cli.main", "serve", "--port", str(port)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_ready(url, server)
            yield url, server.pid
        finally:
            server.terminate()


def measure_load(url: str, pid: int, texts: Sequence[str], clients: int) -> ServerLoad:
    """Search for all texts with several clients, each sending its next search when the previous one is answered.

    Args:
        url: The server's URL.
        pid: The server's process ID.
        texts: Queries to distribute over the clients.
        clients: Number of clients, each with its own connection.

    Raises:
        RuntimeError: The server refuses a search.
        TimeoutError: The searches take longer than one minute plus 0.1 s each.
    """
    start, server, client = time.perf_counter(), processor_seconds(pid), time.process_time()
    searches = _search_all(urlsplit(url), texts, clients)
    asyncio.run(asyncio.wait_for(searches, _STALLED_SECONDS + len(texts) / 10))
    seconds = time.perf_counter() - start
    scale = 1000 / len(texts)
    return ServerLoad(
        rate=len(texts) / seconds,
        server=scale * (processor_seconds(pid) - server),
        client=scale * (time.process_time() - client),
    )


def process_memory(pid: int) -> ProcessMemory:
    """Read a process's current resident memory."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()[:1]
    return ProcessMemory(mapped=1024 * int(fields["RssFile"][0]), own=1024 * int(fields["RssAnon"][0]))


def processor_seconds(pid: int) -> float:
    """Read a process's processor time since its start, over all threads."""
    # The process name, in parentheses, can contain any character; user and system time are fields 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _search_all(url: SplitResult, texts: Sequence[str], clients: int) -> None:
    remaining = iter(texts)

    async def run_client() -> None:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        for text in remaining:
            query = urlencode({"q": text, "k": _K})
            writer.write(f"GET /search?{query} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
            head = await reader.readuntil(_HEAD_END)
            length = _LENGTH.search(head)
            if not head.startswith(b"HTTP/1.1 200 ") or length is None:
                raise RuntimeError(f"the server refused a search: {head.decode('latin-1')}")
            body = await reader.readexactly(int(length[1]))
            if not (body.startswith(b'{"query":') and body.endswith(b"}")):
                raise RuntimeError(f"the response is not a search result: {body[:200]!r}")
        writer.close()

    await asyncio.gather(*(run_client() for _ in range(clients)))


def _wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            readiness = httpx.get(f"{url}/readyz", trust_env=False).json()
            if readiness["ready"] and readiness["generation"]:
                return
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.1)
    raise RuntimeError("the server did not become ready")
