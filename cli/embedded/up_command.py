"""``cinestrata up``: API, workers and a private broker on one data folder, under one process."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.console import console, fail, warnings
from cli.embedded.child_process import ChildProcess
from cli.embedded.data_folder_lock import FolderBusy, FolderLock, data_folder_settings, locked
from cli.embedded.dead_worker_leases import release_leases
from cli.embedded.private_broker import (
    BrokerMissing,
    quarantine_store,
    redis_argv,
    socket_path,
    wait_until_up,
)
from cli.embedded.process_supervisor import StartFailed, Supervisor

if TYPE_CHECKING:
    from service.core.settings import Settings

__all__ = ["run_up"]

_START_SECONDS = 300.0  # first imports of torch on a slow disk take their time
_BROKER_SECONDS = 10.0
_SMALL_MACHINE = 4  # cores; below, the API's arithmetic would only take turns with the trainer's
_WORKERS, _API, _BROKER = range(3)  # in this order they stop


def run_up(data: Path | None, host: str | None, port: int | None) -> None:
    """Start everything, say where it is, and keep it running until somebody asks to stop."""
    if host is not None:
        os.environ["CINESTRATA_HOST"] = host  # the API reads it there
    settings = data_folder_settings(data)
    _refuse_open_door(settings)
    supervisor = Supervisor(
        report=lambda sentence: warnings.print(sentence, soft_wrap=True), buried=release_leases
    )
    try:
        with (
            locked(settings.run_dir, settings.data_dir) as lock,
            _listen(settings.host, settings.port if port is None else port) as listener,
            supervisor.signals(),
        ):
            try:
                url = _start(supervisor, settings, lock, listener)
                if url:
                    console.print(f"Cinestrata is up at {url}", soft_wrap=True)
                    sys.stdout.flush()
                    supervisor.watch()
            finally:
                supervisor.stop()
    except FolderBusy as busy:
        fail(str(busy), "Use that one, stop it first, or choose another folder with --data.")
    except (BrokerMissing, StartFailed) as error:
        fail(str(error))


def _start(
    supervisor: Supervisor, settings: Settings, lock: FolderLock, listener: socket.socket
) -> str | None:
    from service.catalog.database import sqlite_path
    from service.catalog.migrations import upgrade

    for folder in (settings.media_root, settings.run_dir):
        folder.mkdir(parents=True, exist_ok=True)
    redis_url = os.environ.get("CINESTRATA_REDIS_URL") or _start_broker(supervisor, settings.run_dir)
    if supervisor.stopping:
        return None
    upgrade(settings)
    if sqlite_path(settings.database_url):  # and so nobody else works on it while we hold the folder
        release_leases()

    url = _address(listener)
    lock.note(url=url, redis_url=redis_url)
    supervisor.start(*_children(settings, listener, redis_url))
    with _answers(url) as ready:
        if supervisor.wait_until(ready, _START_SECONDS):
            return url
    if not supervisor.stopping:
        raise StartFailed(
            f"The API did not answer within {_START_SECONDS:g} s; see {settings.run_dir / 'api.log'}."
        )
    return None


def _start_broker(supervisor: Supervisor, run_dir: Path) -> str:
    path = socket_path(run_dir)
    broker = ChildProcess("redis", redis_argv(run_dir, path), run_dir / "redis.log", order=_BROKER)
    supervisor.start(broker)
    if not wait_until_up(path, _BROKER_SECONDS):
        broker.kill()
        aside = quarantine_store(run_dir)
        warnings.print(
            f"The broker could not read its stored messages; they are in {aside} now.", soft_wrap=True
        )
        (run_dir / "redis").mkdir()
        broker.start()
        if not wait_until_up(path, _BROKER_SECONDS):
            raise StartFailed(f"redis does not start. The end of {broker.log}:\n{broker.last_words()}")
    return f"redis+socket://{path}"


def _children(settings: Settings, listener: socket.socket, redis_url: str) -> list[ChildProcess]:
    common = {
        "CINESTRATA_DATA_DIR": str(settings.data_dir),
        "CINESTRATA_REDIS_URL": redis_url,
        "PYTHONUNBUFFERED": "1",
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    single = _single_threaded() if cores <= _SMALL_MACHINE else {}
    me = [sys.executable, "-P", "-m", "cli.main"]

    def child(name: str, argv: list[str], env: Mapping[str, str], order: int, nice: int = 0) -> ChildProcess:
        log = settings.run_dir / f"{name}.log"
        return ChildProcess(name, [*me, *argv], log, {**common, **env}, order=order, nice=nice)

    api = child("api", ["serve", "--fd", str(listener.fileno())], single, _API)
    api.fds = (listener.fileno(),)
    return [
        api,
        # Searches come first: the workers take what they leave.
        child("worker-cpu", ["worker", "--queue", "cpu"], single, _WORKERS, nice=5),
        child("worker-gpu", ["worker", "--queue", "gpu"], {}, _WORKERS, nice=5),
    ]


def _single_threaded() -> dict[str, str]:
    return (
        {}
        if "CINESTRATA_TORCH_THREADS" in os.environ
        else {"CINESTRATA_TORCH_THREADS": "1", "OMP_NUM_THREADS": "1"}
    )


def _listen(host: str, port: int) -> socket.socket:
    """The listening socket. It stays open here, so that a restarted API refuses no connection in between."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fail(
                f"Port {port} on {host} is taken.",
                "Choose another with --port, or --port 0 for any free one.",
            )
        fail(
            f"Cannot listen on {host}, port {port}: {error.strerror or error}.",
            "Choose others with --host and --port.",
        )


def _refuse_open_door(settings: Settings) -> None:
    from api.security.security_middleware import is_loopback

    if settings.api_key is None and not is_loopback(settings.host):
        fail(
            f"{settings.host} opens the service to the network without a key.",
            "Set CINESTRATA_API_KEY to a secret of yours, or listen on 127.0.0.1.",
        )


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"


@contextmanager
def _answers(url: str) -> Iterator[Callable[[], bool]]:
    """Asks whether the service does."""
    import httpx

    started = time.monotonic()
    with httpx.Client(base_url=url, timeout=2, trust_env=False) as client:

        def ready() -> bool:
            try:
                if client.get("/readyz").status_code == 200:
                    return True
                # Alive, but something is not in order: being up and saying so beats not being up.
                return time.monotonic() - started > 60 and client.get("/livez").status_code == 200
            except httpx.HTTPError:
                return False

        yield ready
