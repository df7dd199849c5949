"""Generate mixed load over HTTP: as fast as clients are answered, which measures capacity, or at a given rate.

At a given rate, requests are sent at their scheduled times, however many are outstanding, so that a stall counts in the
latency of each request that it delays. The generator shares cores with the service, so it writes requests and reads
responses as bytes.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *\d+\r\n", re.IGNORECASE)
_TIMEOUT = 60.0
_MAX_IDLE_SECONDS = 2.0  # the service closes connections that are idle for five seconds
_REPEATED, _RECENT_TEXTS = 0.5, 100
WORDS_OF_TEXT = 2, 14
_WORDS = (
    "red",
    "small",
    "night",
    "street",
    "boat",
    "lamp",
    "tree",
    "cell",
    "crowd",
    "bridge",
    "snow",
    "glass",
)


@dataclass(frozen=True)
class RequestRecord:
    """A request in the load.

    Attributes:
        route: Kind of request.
        due: Scheduled time on the monotonic clock.
        delay: Time from the schedule until the generator began to send.
        seconds: Time from the schedule to the last byte of the response.
        status: Status code; 0 if the connection failed.
        has_retry_after: Whether the response has a ``Retry-After`` header.
    """

    route: str
    due: float
    delay: float
    seconds: float
    status: int
    has_retry_after: bool


class RequestMix:
    """What a library's users request: 17 of 20 requests are searches.

    Half of the searches have a new text of 2 to 14 words; the others repeat one of the last hundred.

    Args:
        seed: Seed for the order and the texts.
    """

    def __init__(self, videos: Sequence[str], seed: int) -> None:
        self._videos = videos
        self._rng = random.Random(seed)
        self._recent: deque[str] = deque(maxlen=_RECENT_TEXTS)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Iterate over kinds and paths without end."""
        rng = self._rng
        while True:
            draw = rng.randrange(20)
            if draw < 17:
                is_repeated = self._recent and rng.random() < _REPEATED
                text = rng.choice(self._recent) if is_repeated else self.new_text()
                yield "search", f"/search?q={quote(text)}"
            elif draw == 17:
                yield "similar", f"/videos/{quote(rng.choice(self._videos))}/similar"
            elif draw == 18:
                yield "video", f"/videos/{quote(rng.choice(self._videos))}"
            else:
                yield "tasks", "/tasks"

    def new_text(self, length: int | None = None) -> str:
        """Create a text that was not searched before, with this many words."""
        length = length or self._rng.randint(*WORDS_OF_TEXT)
        words = [self._rng.choice(_WORDS) for _ in range(length - 1)]
        text = " ".join([*words, str(self._rng.randrange(10**6))])
        self._recent.append(text)
        return text


class LoadGenerator:
    """Sends a mix of requests to a service."""

    def __init__(self, url: str, mix: RequestMix) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._address = parts.hostname, parts.port, parts.netloc
        self._requests = iter(mix)
        # Open connections with the time of their last response, latest last.
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def saturate(self, clients: int, seconds: float) -> list[RequestRecord]:
        """Send from clients that each wait for an answer before the next request; returns their records."""
        end = time.monotonic() + seconds
        records: list[RequestRecord] = []

        async def run_client() -> None:
            while (now := time.monotonic()) < end:
                records.append(await self._send(now))

        await asyncio.gather(*(run_client() for _ in range(clients)))
        self._close_idle()
        return records

    async def send_at_rate(
        self, rate: float, seconds: float, is_over: Callable[[], bool] = lambda: False
    ) -> list[RequestRecord]:
        """Send at a constant rate, and return the records.

        Args:
            rate: Requests per second.
            seconds: Duration; responses outstanding at its end are awaited.
            is_over: Tells whether to end before that.
        """
        start = time.monotonic()
        running = []
        for number in range(round(rate * seconds)):
            if is_over():
                break
            due = start + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            running.append(asyncio.create_task(self._send(due)))
        records = await asyncio.gather(*running)
        self._close_idle()
        return list(records)

    async def _send(self, due: float) -> RequestRecord:
        route, path = next(self._requests)
        delay = time.monotonic() - due
        try:
            status, retry_after = await asyncio.wait_for(self._exchange(path), _TIMEOUT)
        except (OSError, EOFError, TimeoutError):
            status, retry_after = 0, False
        return RequestRecord(route, due, delay, time.monotonic() - due, status, retry_after)

    async def _exchange(self, path: str) -> tuple[int, bool]:
        """Send a request; returns the status, and whether the response has ``Retry-After``."""
        reader, writer = self._take_idle() or await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._address}\r\n\r\n".encode())
            head = await reader.readuntil(_HEAD_END)
            length = _LENGTH.search(head)
            if length is None:
                raise EOFError(f"the response to {path} has no content-length")
            await reader.readexactly(int(length[1]))
        except BaseException:
            writer.close()
            raise
        self._idle.append((time.monotonic(), reader, writer))
        return int(head.split(b" ", 2)[1]), _RETRY_AFTER.search(head) is not None

    def _take_idle(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Take the connection that was used last; None if it has been idle so long that the service may close it."""
        if not self._idle:
            return None
        used, reader, writer = self._idle.pop()
        if time.monotonic() - used < _MAX_IDLE_SECONDS:
            return reader, writer
        writer.close()
        self._close_idle()  # the others are idle for longer
        return None

    def _close_idle(self) -> None:
        for _, _, writer in self._idle:
            writer.close()
        self._idle.clear()
