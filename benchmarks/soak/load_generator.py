"""Generate load over HTTP: at a given rate, or as fast as clients are answered, which measures capacity.

At a given rate, requests are sent at their scheduled times, however many are outstanding, so that a stall counts in the
latency of each request that it delays. The generator shares cores with the service, so it writes requests and reads
responses as bytes.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *\d+\r\n", re.IGNORECASE)
_TIMEOUT = 60.0
_MAX_IDLE_SECONDS = 2.0  # the service closes connections that are idle for five seconds


@dataclass(frozen=True)
class RequestRecord:
    """A request: when it was due on the monotonic clock, and the seconds from then to the last byte of the response."""

    due: float
    seconds: float
    status: int
    has_retry_after: bool = False


class LoadGenerator:
    """Sends requests to a service, and records the running or latest load."""

    def __init__(self, url: str, paths: Iterable[str]) -> None:
        parts = urlsplit(url)
        self.records: list[RequestRecord] = []
        self._host, self._port, self._address = parts.hostname, parts.port, parts.netloc
        self._paths = iter(paths)
        # Open connections with the time of their last response, latest last.
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    def saturate(self, clients: int, seconds: float = math.inf) -> list[RequestRecord]:
        """Send from clients that each wait for an answer before the next request; returns their records."""

        async def run_client() -> None:
            while time.monotonic() < end and (path := next(self._paths, None)) is not None:
                await self._send(path, time.monotonic())

        async def run() -> None:
            await asyncio.gather(*(run_client() for _ in range(clients)))

        end = time.monotonic() + seconds
        return self._run(run)

    def send_at_rate(self, rate: float, is_over: Callable[[float], bool]) -> list[RequestRecord]:
        """Send ``rate`` requests per second until ``is_over(elapsed seconds)`` is true, and await all responses."""

        async def run() -> None:
            start = time.monotonic()
            running: list[asyncio.Task[None]] = []
            while not is_over(elapsed := len(running) / rate):
                await asyncio.sleep(max(0.0, start + elapsed - time.monotonic()))
                running.append(asyncio.create_task(self._send(next(self._paths), start + elapsed)))
            await asyncio.gather(*running)

        return self._run(run)

    def _run(self, load: Callable[[], Awaitable[None]]) -> list[RequestRecord]:
        self.records = []

        async def run() -> None:
            await load()
            while self._idle:
                self._idle.pop()[2].close()

        asyncio.run(run())
        return self.records

    async def _send(self, path: str, due: float) -> None:
        status, has_retry_after = 0, False
        try:
            head = await asyncio.wait_for(self._exchange(path), _TIMEOUT)
            status, has_retry_after = int(head.split(b" ", 2)[1]), _RETRY_AFTER.search(head) is not None
        except (OSError, EOFError, TimeoutError):
            pass
        self.records.append(RequestRecord(due, time.monotonic() - due, status, has_retry_after))

    async def _exchange(self, path: str) -> bytes:
        """Send a request, read the whole response, and return its head."""
        while self._idle and time.monotonic() - self._idle[0][0] > _MAX_IDLE_SECONDS:
            self._idle.pop(0)[2].close()
        _, reader, writer = (
            self._idle.pop() if self._idle else (0.0, *await asyncio.open_connection(self._host, self._port))
        )
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._address}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if length is None:
                raise EOFError(f"the response to {path} has no content-length")
            await reader.readexactly(int(length[1]))
        except BaseException:
            writer.close()
            raise
        self._idle.append((time.monotonic(), reader, writer))
        return head
