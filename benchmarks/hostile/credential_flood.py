"""Searches during a flood of wrong credentials: ``python -m benchmarks.hostile.credential_flood``.

``cinestrata up`` serves a library of one domain and requires keys. Two clients with valid keys search at a constant
rate: one has the address of the flood, the other one has its own. The floods are:

- *public page*: requests without credentials for a small public route. They cost the machine as much as any request,
  so they are the bound of the other floods.
- *wrong keys*: API keys of the right form that do not exist, each a different one.
- *wrong passwords*: sign-ins with different names.
- *wrong passwords, many addresses*: the same, with a new loopback address for each connection, as a botnet has.

The process of the flood shares the cores of the service. Searches without a flood precede and follow each flood, each
for half its duration. The report contains the latencies with and without the flood, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.ingest.embedded_service import FINAL_STATES, embedded_service
from benchmarks.reporting.markdown_tables import markdown_table

__all__ = ["FLOODS", "main", "measure"]

_Search = tuple[float, int]  # latency in milliseconds, and status; 0 without an answer
_ADMIN_KEY = secrets.token_hex(16)
_FLOOD_ADDRESS, _OTHER_ADDRESS = "127.0.0.1", "127.0.0.2"
_CONNECTIONS = 8
_RATE = 10.0  # searches per second of each client
_MAX_REQUESTS = 100_000
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_REQUESTS_PER_CONNECTION = 20  # of a flood with many addresses
_SETTINGS = {
    "CINESTRATA_API_KEY": _ADMIN_KEY,
    "CINESTRATA_BACKBONE": "tiny",
    "CINESTRATA_LOG_LEVEL": "ERROR",
    "CINESTRATA_FRAMES": "4",
}


def _public_page(number: int) -> tuple[str, str, str]:
    return "GET /v1/livez", "", ""


def _wrong_key(number: int) -> tuple[str, str, str]:
    return "GET /v1/search?q=a", f"X-API-Key: cine_{number:012x}_{'A' * 43}\r\n", ""


def _wrong_password(number: int) -> tuple[str, str, str]:
    form = "Content-Type: application/x-www-form-urlencoded\r\n"
    return "POST /login", form, f"name=user{number}&password=a+wrong+guess+{number}"


@dataclass(frozen=True)
class Flood:
    """A kind of flood.

    Attributes:
        request: Method and path, further headers, and body of the request with a number.
        has_many_addresses: Whether connections have different addresses.
    """

    request: Callable[[int], tuple[str, str, str]]
    has_many_addresses: bool = False


FLOODS = {
    "public page": Flood(_public_page),
    "wrong keys": Flood(_wrong_key),
    "wrong passwords": Flood(_wrong_password),
    "wrong passwords, many addresses": Flood(_wrong_password, has_many_addresses=True),
}


def measure(seconds: float, floods: Sequence[str] = tuple(FLOODS)) -> dict[str, Any]:
    """Measure searches without and during floods; returns the report.

    Args:
        seconds: Duration of each phase.
        floods: Names of the floods.
    """
    with (
        tempfile.TemporaryDirectory(prefix="cinestrata-flood-") as folder,
        embedded_service(Path(folder), _SETTINGS) as api,
    ):
        api.headers["X-API-Key"] = _ADMIN_KEY
        _learn(api)
        keys = {
            address: str(api.post("/keys", json={"name": address, "scope": "search"}).json()["key"])
            for address in (_OTHER_ADDRESS, _FLOOD_ADDRESS)
        }
        url = str(api.base_url)
        asyncio.run(_search(url, keys, 3.0))  # warms the caches
        phases = {}
        for name in floods:
            before = asyncio.run(_search(url, keys, seconds / 2))
            during, statuses = _flooded(name, url, keys, seconds)
            after = asyncio.run(_search(url, keys, seconds / 2))
            phases[name] = {
                "statuses": statuses,
                "clients": {
                    address: _compare(before[address] + after[address], during[address]) for address in keys
                },
            }
    return {"seconds": seconds, "cores": len(os.sched_getaffinity(0)), "phases": phases}


def _learn(api: httpx.Client) -> None:
    task = api.post("/samples").raise_for_status().json()["id"]
    while (details := api.get(f"/tasks/{task}").json())["state"] not in FINAL_STATES:
        time.sleep(0.5)
    if details["state"] != "ready":
        raise RuntimeError(f"the sample domain is {details['state']}: {details['error']}")
    while not (found := api.get("/search?q=a")).is_success or not found.json()["results"]:
        time.sleep(0.2)


def _compare(calm: list[_Search], flooded: list[_Search]) -> dict[str, Any]:
    """Percentiles of the latency in milliseconds without and during a flood, and the searches that failed in it."""
    percentiles = [
        np.percentile([ms for ms, _ in searches], [50, 99]).round(2) for searches in (calm, flooded)
    ]
    return {
        "calm_ms": percentiles[0].tolist(),
        "flooded_ms": percentiles[1].tolist(),
        "searches": len(flooded),
        "failed": dict(Counter(status for _, status in flooded if status != 200)),
    }


def _flooded(
    name: str, url: str, keys: dict[str, str], seconds: float
) -> tuple[dict[str, list[_Search]], dict[int, int]]:
    """Searches during a flood, and the statuses of the flood."""
    spawning = multiprocessing.get_context("spawn")
    receiver, sender = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_run_flood, args=(name, url, seconds + 2.0, sender))
    process.start()
    receiver.recv()  # the flood has begun
    try:
        searches = asyncio.run(_search(url, keys, seconds))
        statuses: dict[int, int] = receiver.recv()
    finally:
        process.join(seconds)
        process.terminate()
    return searches, statuses


async def _search(url: str, keys: dict[str, str], seconds: float) -> dict[str, list[_Search]]:
    """Searches of the clients at their rate, each counted from its scheduled time."""

    async def run_client(address: str, key: str) -> list[_Search]:
        transport = httpx.AsyncHTTPTransport(local_address=address)
        async with httpx.AsyncClient(
            base_url=url, headers={"X-API-Key": key}, transport=transport, timeout=60, trust_env=False
        ) as client:

            async def search(due: float, number: int) -> _Search:
                try:
                    answer = await client.get("/v1/search", params={"q": f"a red car {number}", "k": 5})
                    status = answer.status_code
                except httpx.HTTPError:
                    status = 0
                return 1000 * (time.monotonic() - due), status

            start, running = time.monotonic(), []
            for number in range(round(_RATE * seconds)):
                due = start + number / _RATE
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                running.append(asyncio.create_task(search(due, number)))
            return await asyncio.gather(*running)

    found = await asyncio.gather(*(run_client(*client) for client in keys.items()))
    return dict(zip(keys, found, strict=True))


def _run_flood(name: str, url: str, seconds: float, sender: Any) -> None:
    sender.send("started")
    sender.send(dict(asyncio.run(_send_flood(FLOODS[name], httpx.URL(url), seconds))))


async def _send_flood(flood: Flood, url: httpx.URL, seconds: float) -> Counter[int]:
    """Statuses of a flood over several connections; 0 is a closed connection."""
    end = time.monotonic() + seconds
    statuses: Counter[int] = Counter()
    sent = 0

    async def run_connection(first: int) -> None:
        nonlocal sent
        reader = writer = None
        uses = 0
        while time.monotonic() < end and sent < _MAX_REQUESTS:
            number, sent = sent, sent + 1
            try:
                if writer is None or (flood.has_many_addresses and uses >= _REQUESTS_PER_CONNECTION):
                    if writer is not None:
                        writer.close()
                    uses = 0
                    own = _address(number) if flood.has_many_addresses else _FLOOD_ADDRESS
                    reader, writer = await asyncio.open_connection(url.host, url.port, local_addr=(own, 0))
                uses += 1
                statuses[await _exchange(reader, writer, url, flood.request(number))] += 1
            except (OSError, EOFError):
                statuses[0] += 1
                writer = None

    await asyncio.gather(*map(run_connection, range(_CONNECTIONS)))
    return statuses


def _address(number: int) -> str:
    """A loopback address of its own for each number."""
    return f"127.{1 + number // 62_500 % 250}.{1 + number // 250 % 250}.{1 + number % 250}"


async def _exchange(reader: Any, writer: Any, url: httpx.URL, request: tuple[str, str, str]) -> int:
    line, headers, body = request
    writer.write(
        f"{line} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n{headers}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    await reader.readexactly(int(length[1]) if length else 0)
    return int(head[9:12])


def _table(report: dict[str, Any]) -> str:
    rows = []
    for name, phase in report["phases"].items():
        statuses = sorted(phase["statuses"].items())
        row = [name, ", ".join(f"{count:,} × {status}" for status, count in statuses)]
        for found in phase["clients"].values():
            calm, flooded = found["calm_ms"], found["flooded_ms"]
            row += [f"{b:.0f} / {a:.0f} ms ({b / a:.1f})" for a, b in zip(calm, flooded, strict=True)]
            row.append(f"{sum(found['failed'].values())} of {found['searches']}")
        rows.append(row)
    heads = ["flood", "answers to the flood"]
    for client in ("other address", "same address"):
        heads += [f"{client}: p50", "p99", "failed"]
    return markdown_table(heads, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, and write the report as JSON; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0, help="Duration of each phase.")
    parser.add_argument("--out", type=Path, default=Path("credential-flood.json"))
    arguments = parser.parse_args(argv)
    report = measure(arguments.seconds)
    arguments.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    sys.stdout.write(_table(report) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
