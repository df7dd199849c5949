"""``cinestrata up``: API, workers and a private broker on one data folder, under one supervisor."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from sqlalchemy import delete, select, update

from cli.console import console, error_console, fail
from cli.embedded import data_folder
from cli.embedded.process_supervisor import ChildProcess, StartFailed, Supervisor
from service.catalog.database import dispose, session_scope
from service.catalog.operation_tables import LeaseRow
from service.catalog.tables import Chunk, Reading, Task
from service.core.errors import CinestrataError
from service.tasks.lifecycle.state_machine import clear_lease

if TYPE_CHECKING:
    from service.core.settings import Settings


_START_SECONDS = 300.0  # importing torch for the first time from a slow disk takes minutes
_BROKER_SECONDS = 10.0
_LIVENESS_SECONDS = 60.0  # after this time, a live service counts as up although it is not ready
_SMALL_MACHINE_CORES = 4  # up to this number, API threads would only compete with the trainer's
_MAX_PROBING_WORKERS = 8
_WORKERS, _API, _BROKER = range(3)  # stop order
# Searches have priority: if cores are scarce, a worker gets a tenth of the API's time. With niceness 5 it got a third,
# and searches queued.
_WORKER_NICE = 10


def run_up(data: Path | None, host: str | None, port: int | None) -> None:
    """Start all processes, print the address, and supervise them until a stop signal is received."""
    from api.security.authentication import require_network_credentials

    if host is not None:
        os.environ["CINESTRATA_HOST"] = host  # the API process reads its settings from the environment
    settings = data_folder.data_folder_settings(data, uses_running_broker=False)
    try:
        require_network_credentials(settings)
    except ValueError as error:
        fail(f"{error}.")
    _require_backbone(settings)
    supervisor = Supervisor(on_restart=lambda message: error_console.say(message), on_exit=release_leases)
    try:
        with (
            data_folder.hold_data_folder(settings.run_dir, settings.data_dir) as lock,
            _listen(settings.host, settings.port if port is None else port) as listener,
            supervisor.signals(),
        ):
            try:
                url = _start(supervisor, settings, lock, listener)
                if url:
                    console.say(f"Cinestrata is up at {url}")
                    sys.stdout.flush()
                    supervisor.watch()
            finally:
                supervisor.stop()
    except data_folder.FolderBusy as busy:
        fail(str(busy), "Use that service, stop it, or choose another folder with --data.")
    except (data_folder.BrokerMissing, StartFailed) as error:
        fail(str(error))


_LOAD_BACKBONE = """
import sys
from models.encoders.encoder_registry import load_query_backbone
from models.errors import ModelError
try:
    load_query_backbone(sys.argv[1])
except ModelError as error:
    sys.exit(str(error))
"""


def _require_backbone(settings: Settings) -> None:
    """Load the backbone of new domains in a separate process, and fail with the reason if that fails."""
    from service.storage.library_backbone import library_backbone

    name = library_backbone(settings)
    if name in ("small", "tiny"):
        return  # installed with the project; loading it would add a second to every start
    command = [sys.executable, "-P", "-c", _LOAD_BACKBONE, name]
    loaded = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if loaded.returncode:
        reason = loaded.stderr.strip().splitlines()[-1:] or ["the process that loads it was killed"]
        fail(f"CINESTRATA_BACKBONE: {reason[0].rstrip('.')}.")


def _start(
    supervisor: Supervisor, settings: Settings, lock: data_folder.FolderLock, listener: socket.socket
) -> str | None:
    """Start all processes; returns the URL once the service answers, or None after a stop signal."""
    from service.catalog.database import sqlite_path
    from service.catalog.migrations import upgrade

    for folder in (settings.media_root, settings.run_dir):
        folder.mkdir(parents=True, exist_ok=True)
    redis_url = os.environ.get("CINESTRATA_REDIS_URL") or _start_broker(supervisor, settings.run_dir, lock)
    if supervisor.stopping:
        return None
    upgrade(settings)
    if sqlite_path(settings.database_url):  # no other worker uses this catalog while the folder is locked
        release_leases()

    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 (replaced)
    url = f"http://{host}:{port}"
    lock.write_record(url=url, redis_url=redis_url)
    supervisor.start(*_service_processes(settings, lock, listener, redis_url))
    with readiness_check(url) as ready:
        if supervisor.wait_until(ready, _START_SECONDS):
            return url
    if not supervisor.stopping:
        raise StartFailed(f"The API didn't answer in time; see {settings.run_dir / 'api.log'}.")
    return None


def _start_broker(supervisor: Supervisor, run_dir: Path, lock: data_folder.FolderLock) -> str:
    from service.core.settings import file_url

    path = data_folder.socket_path(run_dir)
    broker = ChildProcess(
        "redis",
        data_folder.redis_argv(run_dir, path),
        run_dir / "redis.log",
        fds=(lock.descriptor,),
        stop_order=_BROKER,
    )
    supervisor.start(broker)
    if not data_folder.wait_until_up(path, _BROKER_SECONDS):
        broker.kill()
        quarantine = data_folder.quarantine_store(run_dir)
        error_console.say(f"The broker couldn't read its stored messages; they were moved to {quarantine}.")
        (run_dir / "redis").mkdir()
        broker.start()
        if not data_folder.wait_until_up(path, _BROKER_SECONDS):
            raise StartFailed(f"redis doesn't start. Last lines of {broker.log}:\n{broker.log_tail()}")
    return file_url("redis+socket://", path)


def _service_processes(
    settings: Settings, lock: data_folder.FolderLock, listener: socket.socket, redis_url: str
) -> list[ChildProcess]:
    common = {
        "CINESTRATA_DATA_DIR": str(settings.data_dir),
        "CINESTRATA_REDIS_URL": redis_url,
        "PYTHONUNBUFFERED": "1",
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    is_small = cores <= _SMALL_MACHINE_CORES and "CINESTRATA_TORCH_THREADS" not in os.environ
    one_thread = {"CINESTRATA_TORCH_THREADS": "1", "OMP_NUM_THREADS": "1"} if is_small else {}
    command = [sys.executable, "-P", "-m", "cli.main"]

    def child(name: str, argv: list[str], env: Mapping[str, str], **options: Any) -> ChildProcess:
        log = settings.run_dir / f"{name}.log"
        return ChildProcess(
            name, [*command, *argv], log, {**common, **env}, **{"fds": [lock.descriptor], **options}
        )

    # One probing worker per two cores, which leaves the others to searches and training.
    count = min(max(cores // 2, 1), _MAX_PROBING_WORKERS)
    probing = ["worker-cpu", *(f"worker-cpu-{number}" for number in range(2, count + 1))]
    descriptors = [lock.descriptor, listener.fileno()]
    worker: dict[str, Any] = {"stop_order": _WORKERS, "nice": _WORKER_NICE}
    return [
        child("api", ["serve", "--fd", str(listener.fileno())], one_thread, stop_order=_API, fds=descriptors),
        *(child(name, ["worker", "--queue", "cpu"], one_thread, **worker) for name in probing),
        child("worker-gpu", ["worker", "--queue", "gpu"], {}, **worker),
    ]


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket. The supervisor keeps it, so that an API restart refuses no connection."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fail(
                f"Port {port} on {host} is in use.",
                "Choose another port with --port, or --port 0 for any free port.",
            )
        fail(
            f"Cannot listen on {host}, port {port}: {error.strerror or error}.",
            "Choose another address with --host and --port.",
        )


@contextmanager
def readiness_check(url: str) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the service counts as up."""
    started = time.monotonic()
    with httpx.Client(base_url=url, timeout=2, trust_env=False) as client:

        def ready() -> bool:
            try:
                if client.get("/readyz").status_code == 200:
                    return True
                # A degraded service that reports its fault is better than one that doesn't start.
                waited = time.monotonic() - started
                return waited > _LIVENESS_SECONDS and client.get("/livez").status_code == 200
            except httpx.HTTPError:
                return False

        yield ready


def release_leases(pid: int | None = None) -> None:
    """Release the leases of an ended process, so that its tasks need not wait until they expire.

    The attempt still counts, so a task that kills its worker is not retried forever. Catalog errors are ignored: leases
    expire anyway. Without a process ID, all leases are released, which is safe only while no worker runs.
    """
    owner = "" if pid is None else f"{socket.gethostname()}:{pid}:"
    try:
        with session_scope(write=True) as session:
            for task in session.scalars(
                select(Task).where(Task.lease_owner.startswith(owner, autoescape=True))
            ):
                clear_lease(task)
            for table in (Chunk, Reading):
                session.execute(
                    update(table)
                    .where(table.lease_owner.startswith(owner, autoescape=True))
                    .values(lease_owner=None, lease_expires_at=None, fencing_token=table.fencing_token + 1)
                    .execution_options(synchronize_session=False)
                )
            if pid is None:  # these leases have no owner
                session.execute(delete(LeaseRow))
    except CinestrataError:
        pass
    finally:
        dispose()  # the next child process must not inherit database connections
