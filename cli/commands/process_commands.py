"""The processes that do the work, each started alone: API, worker, migration."""

from __future__ import annotations

import gc
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from cli.console import console, fail
from cli.embedded.data_folder_lock import data_folder_settings

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["run_api", "run_migrations", "run_worker"]

_DRAIN_SECONDS = 3  # event streams stay open for as long as somebody watches; they must not hold up a stop


def run_api(data: Path | None, host: str | None, port: int | None, fd: int | None) -> None:
    """Serve the API in this process, on an address or on an open listening socket."""
    import uvicorn

    if host is not None:
        os.environ["CINESTRATA_HOST"] = host  # what the API permits depends on who can reach it
    settings = data_folder_settings(data)
    config = uvicorn.Config(
        _api,
        factory=True,
        host=settings.host,
        port=settings.port if port is None else port,
        log_level=settings.log_level.lower(),
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    # When all is closed, uvicorn raises the signal that stopped it once more: being asked to stop is no failure.
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, lambda *_: None)
    sockets = None if fd is None else [socket.socket(fileno=fd)]
    uvicorn.Server(config).run(sockets=sockets)


def _api() -> FastAPI:
    from api.app import create_app
    from index.errors import DeviceMissing
    from models.errors import ModelError

    try:
        app = create_app()
    except (DeviceMissing, ModelError, ValueError) as error:
        fail(str(error))
    # What was imported stays. The collector of garbage would look through all of it now and then, and hold up every
    # search for some hundred milliseconds meanwhile.
    gc.collect()
    gc.freeze()
    return app


def run_worker(queue: str, data: Path | None) -> None:
    """Work on one queue in this process, one job at a time."""
    # Before torch is loaded: threads that wait for each other sleep instead of spinning, or a machine whose cores
    # are busy with something else would learn several times slower than its share of them.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    settings = data_folder_settings(data)

    from service.celery_worker import celery_app

    if queue == "gpu":
        import trainer.worker.learning_job  # noqa: F401 - registers the learning job

    celery_app.worker_main(
        [
            "worker",
            f"--queues={queue}",
            # CUDA does not survive a fork, and one process that learns is what we want; scale out with more workers.
            "--pool=solo",
            f"--hostname={queue}@%h",
            f"--loglevel={settings.log_level}",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )


def run_migrations(data: Path | None) -> None:
    """Bring the catalog's schema up to date."""
    from service.catalog.migrations import upgrade

    upgrade(data_folder_settings(data))
    console.print("The catalog is up to date.")
