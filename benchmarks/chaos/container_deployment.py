"""Run the containers of docker-compose.yml under faults; the container engine restarts each one that ends.

Needs Docker with Compose on this machine, and root rights to send signals to processes in containers.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.chaos.deployments import (
    PRELOAD,
    SERVICE_SETTINGS,
    Deployment,
    NotReady,
    free_port,
    send_signal,
    wait_ready,
)
from benchmarks.chaos.library_checker import CatalogReader
from benchmarks.chaos.process_faults import FOLDER_VARIABLE

_ROOT = Path(__file__).resolve().parents[2]
_USER = 10001  # user in the images
_SERVICES = {
    "api": "api",
    "probing worker": "worker-cpu",
    "learning worker": "worker-gpu",
    "redis": "redis",
    "postgresql": "postgres",
}
_NETWORKS = {"api": ("api",), "workers": ("worker-cpu", "worker-gpu")}
_DATABASE_SECONDS = 120.0


@dataclass(frozen=True)
class ContainerNetwork:
    """The network between a role's containers and the database.

    To cut it, the database leaves the network, not the API: otherwise, the engine would publish another API port.
    """

    name: str
    database: str

    def cut(self) -> None:
        """Remove the database from the network until :meth:`restore`."""
        _docker("network", "disconnect", "--force", self.name, self.database)

    def restore(self) -> None:
        """Connect the database to the network again."""
        _docker("network", "connect", "--alias", _SERVICES["postgresql"], self.name, self.database)


class ContainerDeployment(Deployment):
    """The services of docker-compose.yml, with images built from this source code.

    An overlay mounts the run's folders, gives the API and the workers separate networks to the database, and publishes
    the PostgreSQL and Redis ports on loopback.
    """

    mode = "containers"

    def __init__(self, folder: Path, data: Path) -> None:
        super().__init__(folder, data)
        for path in (self.data, self.faults):
            os.chown(path, _USER, _USER)
        self._project = f"cinestrata-chaos-{secrets.token_hex(4)}"
        self._database_port, redis_port = free_port(), free_port()
        self.broker_url = f"redis://127.0.0.1:{redis_port}/0"
        self._password, key = secrets.token_hex(16), secrets.token_hex(16)
        self.headers = {"X-API-Key": key}
        self._environment = folder / "environment"
        self._environment.write_text(
            f"POSTGRES_PASSWORD={self._password}\nCINESTRATA_API_KEY={key}\nCINESTRATA_PORT={self.port}\n"
            f"CINESTRATA_MEDIA={self.media}\nCINESTRATA_WEIGHTS={folder / 'weights'}\n"
        )
        self._overlay = folder / "overlay.json"
        self._overlay.write_text(json.dumps(self._settings(redis_port)))

    def start(self) -> None:
        """Build the images, start all containers, and wait until they are healthy."""
        self._compose("up", "--build", "--wait")
        database = self._container(_SERVICES["postgresql"])
        for role in _NETWORKS:
            self.networks[role] = ContainerNetwork(f"{self._project}_database-{role}", database)

    def pids(self, role: str) -> list[int]:
        """List the process IDs in a role's container, including its init process."""
        listed = _docker("top", self._container(_SERVICES[role]), "-eo", "pid", check=False)
        return [int(line) for line in listed.split()[1:]]

    def start_worker(self, queue: str) -> subprocess.Popen[bytes]:
        """Start another worker for a queue, which the engine does not restart."""
        container = self._compose("run", "--detach", "--rm", "--no-deps", "-T", f"worker-{queue}").strip()
        # The command passes SIGTERM on to the container.
        command = ["docker", "attach", "--no-stdin", container]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def remove_messages(self) -> None:
        found = _docker("volume", "inspect", "--format", "{{.Mountpoint}}", f"{self._project}_redis")
        for path in Path(found.strip()).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def kill_all(self) -> None:
        """Kill the processes of all containers, and wait until the API is ready again."""
        for role in _SERVICES:
            for pid in self.pids(role):
                send_signal(pid, signal.SIGKILL)
        wait_ready(self.url)

    @contextmanager
    def catalog(self) -> Iterator[CatalogReader]:
        """Open the catalog for reading; waits while the database restarts."""
        with closing(self._connect()) as connection:
            yield CatalogReader(connection)

    def stop(self) -> None:
        """Remove all containers and volumes, and untag the images."""
        self._compose("down", "--volumes", "--remove-orphans", "--rmi", "local", "--timeout", "20")

    def _connect(self) -> psycopg.Connection[Any]:
        deadline = time.monotonic() + _DATABASE_SECONDS
        while True:
            with suppress(psycopg.OperationalError):
                return psycopg.connect(
                    host="127.0.0.1",
                    port=self._database_port,
                    user="cinestrata",
                    dbname="cinestrata",
                    password=self._password,
                    connect_timeout=5,
                    client_encoding="utf8",
                )
            if time.monotonic() > deadline:
                raise NotReady(f"the database of {self._project} cannot be reached")
            time.sleep(0.5)

    def _container(self, service: str) -> str:
        return self._compose("ps", "--all", "--quiet", service).strip()

    def _settings(self, redis_port: int) -> dict[str, Any]:
        """Build the overlay for docker-compose.yml; JSON is YAML."""
        product = {
            "environment": SERVICE_SETTINGS | {FOLDER_VARIABLE: "/faults", "PYTHONPATH": "/preload"},
            "volumes": [f"{self.faults}:/faults", f"{PRELOAD}:/preload:ro"],
        }
        services: dict[str, Any] = {
            service: {**product, "networks": ["default", f"database-{role}"]}
            for role, names in _NETWORKS.items()
            for service in names
        }
        services["migrate"] = {**product, "networks": ["database-workers"]}
        services["redis"] = {"ports": [f"127.0.0.1:{redis_port}:6379"]}
        networks = [f"database-{role}" for role in _NETWORKS]
        services["postgres"] = {"networks": networks, "ports": [f"127.0.0.1:{self._database_port}:5432"]}
        data = {"driver": "local", "driver_opts": {"type": "none", "o": "bind", "device": str(self.data)}}
        return {
            "services": services,
            "networks": {name: {} for name in networks},
            "volumes": {"data": data},
        }

    def _command(self, *arguments: str) -> list[str]:
        options = ["--project-name", self._project, "--env-file", str(self._environment)]
        files = ["--file", str(_ROOT / "docker-compose.yml"), "--file", str(self._overlay)]
        return ["docker", "compose", "--ansi", "never", *options, *files, *arguments]

    def _compose(self, *arguments: str) -> str:
        return _run(self._command(*arguments))


def _docker(*arguments: str, check: bool = True) -> str:
    return _run(["docker", *arguments], check=check)


def _run(command: list[str], *, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
