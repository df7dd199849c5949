"""``cinestrata serve``, ``worker`` and ``migrate``: the processes of the product, started one by one."""

from __future__ import annotations

import gc
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from cli.console import console, fail
from cli.embedded.data_folder import data_folder_settings

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["create_application", "run_api", "run_migrations", "run_worker"]

_DRAIN_SECONDS = 3  # event streams stay open as long as a page is open, and must not delay a stop


def run_api(data: Path | None, host: str | None, port: int | None, fd: int | None) -> None:
    """Serve the API in this process.

    Args:
        data: Data folder; None takes it from the environment.
        host: Address to listen on; None takes it from the settings.
        port: Port to listen on; None takes it from the settings.
        fd: File descriptor of an open listening socket, used instead of an address.
    """
    import uvicorn

    if host is not None:
        os.environ["CINESTRATA_HOST"] = host  # the application checks the address against the API key
    settings = data_folder_settings(data)
    config = uvicorn.Config(
        create_application,
        factory=True,
        host=settings.host,
        port=settings.port if port is None else port,
        log_level=settings.log_level.lower(),
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    # After a graceful shutdown uvicorn raises the received signal again; a requested stop must not exit as a failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    sockets = None if fd is None else [socket.socket(fileno=fd)]
    uvicorn.Server(config).run(sockets=sockets)


def create_application() -> FastAPI:
    """Create the API application; exits with an error if its settings are not usable."""
    from api.app import create_app
    from index.errors import DeviceMissing
    from models.errors import ModelError

    try:
        app = create_app()
    except (DeviceMissing, ModelError, ValueError) as error:
        fail(str(error))
    # Imported modules live as long as the process. Without this, each full garbage collection traverses them and
    # delays all searches by some hundred milliseconds.
    gc.collect()
    gc.freeze()
    return app


def run_worker(queue: str, data: Path | None) -> None:
    """Run the jobs of one queue in this process, one at a time.

    Args:
        queue: ``cpu`` or ``gpu``.
        data: Data folder; None takes it from the environment.
    """
    # Set before torch is imported: waiting threads sleep instead of spinning. With spinning threads, a machine whose
    # cores are partly busy trains several times slower than its share of the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    settings = data_folder_settings(data)

    from service.celery_worker import celery_app

    if queue == "gpu":
        import trainer.worker.learning_job  # noqa: F401 - registers the training job

    celery_app.worker_main(
        [
            "worker",
            f"--queues={queue}",
            # CUDA does not survive a fork, and only one process may train; more workers scale out instead.
            "--pool=solo",
            f"--hostname={queue}@%h",
            f"--loglevel={settings.log_level}",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )


def run_migrations(data: Path | None) -> None:
    """Upgrade the schema of the catalog."""
    from service.catalog.migrations import upgrade

    upgrade(data_folder_settings(data))
    console.print("The catalog is up to date.")
