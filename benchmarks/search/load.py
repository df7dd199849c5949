"""A server of its own process under clients: how many searches a second it answers, and what memory it takes."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.settings import Settings

__all__ = ["Memory", "memory", "serving", "throughput"]

_START_SECONDS = 300.0


@dataclass(frozen=True)
class Memory:
    """Of a process, in bytes.

    Attributes:
        mapped: pages of files that are in memory, which processes that map the same files share.
        own: all others, which no other process has.
    """

    mapped: int
    own: int


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


def throughput(url: str, texts: Sequence[str], clients: int) -> float:
    """Searches a second of so many clients, each of whom asks again as soon as it has its answer.

    Raises:
        httpx.HTTPStatusError: a search was refused.
    """
    return asyncio.run(_throughput(url, texts, clients))


def memory(pid: int) -> Memory:
    """What a process has in memory now."""
    fields = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()[:1]
    return Memory(mapped=1024 * int(fields["RssFile"][0]), own=1024 * int(fields["RssAnon"][0]))


async def _throughput(url: str, texts: Sequence[str], clients: int) -> float:
    left = iter(texts)
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as http:

        async def ask() -> None:
            for text in left:
                answer = await http.get("/search", params={"q": text, "k": 10})
                answer.raise_for_status()

        start = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(clients)))
        return len(texts) / (time.perf_counter() - start)


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
