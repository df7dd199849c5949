"""Run a server process for a library, and measure searches per second and processor time per search."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from benchmarks.ingest.embedded_service import COMMAND, free_port, wait_until_ready
from benchmarks.soak.load_generator import LoadGenerator
from service.core.settings import Settings


class ServerLoad(NamedTuple):
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
    url = f"http://127.0.0.1:{(port := free_port())}"
    environment = os.environ | {
        "CINESTRATA_DATA_DIR": str(configured.data_dir),
        "CINESTRATA_DATABASE_URL": configured.database_url,  # all libraries share one catalog
    }
    if configured.backbone is not None:
        environment["CINESTRATA_BACKBONE"] = configured.backbone
    argv = [*COMMAND, "serve", "--port", str(port)]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until_ready(url, server)
            yield url, server.pid
        finally:
            server.terminate()


def measure_load(url: str, pid: int, texts: Sequence[str], clients: int) -> ServerLoad:
    """Search for all texts with several clients, each sending its next search when the previous one is answered.

    Args:
        pid: The server's process ID.

    Raises:
        RuntimeError: The server does not answer a search.
    """
    load = LoadGenerator(url, [f"/search?{urlencode({'q': text, 'k': 10})}" for text in texts])
    start, server, client = time.perf_counter(), _processor_seconds(pid), time.process_time()
    records = load.saturate(clients)
    seconds = time.perf_counter() - start
    if statuses := {record.status for record in records} - {200}:
        raise RuntimeError(f"the server answers searches with {statuses}")
    return ServerLoad(
        rate=len(texts) / seconds,
        server=1000 * (_processor_seconds(pid) - server) / len(texts),
        client=1000 * (time.process_time() - client) / len(texts),
    )


def _processor_seconds(pid: int) -> float:
    """Read a process's processor time since its start, over all threads."""
    # The process name, in parentheses, can contain any character; user and system time are fields 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
