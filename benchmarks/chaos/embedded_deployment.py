"""Run ``cinestrata up`` under faults: the supervisor restarts its processes, and the harness the supervisor."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType

import httpx

from benchmarks.chaos.catalog_reading import CatalogReader
from benchmarks.chaos.postgres_server import PostgresServer
from benchmarks.chaos.service_processes import COMMAND, find_processes, process_environment, send_signal
from benchmarks.chaos.tcp_proxy import TcpProxy

SERVICE_SETTINGS = {
    "CINESTRATA_BACKBONE": "tiny",
    "CINESTRATA_FRAMES": "2",
    "CINESTRATA_METHOD": "strata",
    "CINESTRATA_TORCH_THREADS": "1",
    "CINESTRATA_LEASE_SECONDS": "10",
    "OMP_NUM_THREADS": "1",
}
_READY_SECONDS = 600.0  # a busy machine takes minutes to start all processes


class NotReady(Exception):
    """A service did not become ready in time; the message names it."""


class EmbeddedDeployment:
    """All processes on one data folder, as ``cinestrata up`` starts them.

    Args:
        folder: Folder of the run; data, media and armed faults are below it.

    Attributes:
        mode: Name of the deployment in the report.
        url: URL of the API.
        data, media, faults: Folders.
        postgres: None: the catalog is a file.
    """

    mode = "embedded"
    headers: Mapping[str, str] = MappingProxyType({})
    postgres: PostgresServer | None = None

    @property
    def networks(self) -> Mapping[str, TcpProxy]:
        """No networks: the catalog is a file."""
        return {}

    def __init__(self, folder: Path, data: Path) -> None:
        self.data, self.media, self.faults = data, folder / "media", folder / "faults"
        for path in (self.data, self.media, self.faults):
            path.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._log = folder / "up.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the service, and wait until it is ready."""
        settings = SERVICE_SETTINGS | {"CINESTRATA_MEDIA_ROOT": str(self.media)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "up", "--data", str(self.data), "--port", str(self._port)],
                stdout=log,
                stderr=log,
                env=process_environment(self.faults, settings),
            )
        wait_ready(self.url, self._process)

    def pids(self, role: str) -> list[int]:
        """List the process IDs of a role; see :data:`benchmarks.chaos.service_processes.ROLES`."""
        return find_processes(self.faults, role)

    def start_worker(self, queue: str) -> subprocess.Popen[bytes]:
        """Start another worker for a queue, which nothing restarts."""
        settings = SERVICE_SETTINGS | {
            "CINESTRATA_MEDIA_ROOT": str(self.media),
            "CINESTRATA_DATA_DIR": str(self.data),
            "CINESTRATA_REDIS_URL": self.broker_url,
        }
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*COMMAND, "worker", "--queue", queue],
                stdout=log,
                stderr=log,
                env=process_environment(self.faults, settings),
            )

    @property
    def broker_url(self) -> str:
        """URL of the broker, as Celery writes it."""
        return f"redis+socket://{self.data / 'run' / 'redis.sock'}"

    def remove_messages(self) -> None:
        """Remove all messages stored in the broker, which must not be running."""
        shutil.rmtree(self.data / "run" / "redis", ignore_errors=True)
        (self.data / "run" / "redis").mkdir(exist_ok=True)

    def kill_all(self) -> None:
        """Kill the supervisor and all processes with it, then start the service again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start()

    @contextmanager
    def catalog(self) -> Iterator[CatalogReader]:
        """Open the catalog for reading."""
        with closing(sqlite3.connect(self.data / "catalog.sqlite3", timeout=30)) as connection:
            yield CatalogReader(connection)

    def stop(self) -> None:
        """End all processes."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(40)
            self._process.kill()
        for role in ("supervisor", "api", "probing worker", "learning worker", "redis"):
            for pid in self.pids(role):
                send_signal(pid, signal.SIGKILL)


def free_port() -> int:
    """Find a TCP port that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def wait_ready(url: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until an API is ready.

    Args:
        process: Process without which the API cannot become ready.

    Raises:
        NotReady: The API is not ready after ten minutes, or the process has ended.
    """
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise NotReady(f"the service at {url} ended with status {process.returncode}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/readyz", trust_env=False, timeout=5).status_code == httpx.codes.OK:
                return
        time.sleep(0.2)
    raise NotReady(f"the service at {url} is not ready after {_READY_SECONDS:g} s")
