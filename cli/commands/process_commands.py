"""``cinestrata serve``, ``worker`` and ``migrate``: start the processes of the product one by one."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.console import CommandGroup, console, error_console, fail
from cli.embedded.data_folder import data_folder_settings
from cli.options import Data, Host, Port

if TYPE_CHECKING:
    from fastapi import FastAPI

    from service.core.settings import Settings

_DRAIN_SECONDS = 3  # event streams stay open with their page, and must not delay a stop
# The parser h11 refuses heads above 64 KiB and several Host fields, between which a proxy and the service might differ.
HTTP_PROTOCOL: Literal["h11"] = "h11"


app = CommandGroup()


@app.command()
def up(data: Data = None, host: Host = None, port: Port = None) -> None:
    """Start API, workers and a private broker on one data folder; Ctrl-C stops them all."""
    from cli.embedded.up_command import run_up

    run_up(data, host, port)


@app.command()
def serve(
    data: Data = None,
    host: Host = None,
    port: Port = None,
    fd: Annotated[int | None, typer.Option(hidden=True, help="Descriptor of a listening socket.")] = None,
) -> None:
    """Start only the API."""
    import uvicorn

    from service.core.process_setup import share_memory_arenas

    share_memory_arenas()
    if host is not None:
        os.environ["CINESTRATA_HOST"] = host  # the application checks the address against the API key
    settings = _start_logging(data)
    _require_schema(settings)
    config = uvicorn.Config(
        create_application,
        factory=True,
        host=settings.host,
        port=settings.port if port is None else port,
        log_level=settings.log_level.lower(),
        access_log=False,
        http=HTTP_PROTOCOL,
        log_config=None,  # its events go through the root logger, in the configured format
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    # After a graceful shutdown, uvicorn raises the received signal again; a requested stop must not exit as a failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    sockets = None if fd is None else [socket.socket(fileno=fd)]
    server = uvicorn.Server(config)
    server.run(sockets=sockets)
    if server.started and any(thread.daemon for thread in threading.enumerate()):
        # One still waits for another server. Ended by force with the interpreter, its C++ code would abort the process.
        logging.shutdown()
        os._exit(0)


@app.command()
def worker(
    queue: Annotated[Literal["cpu", "gpu"], typer.Option(help="cpu: probe and read; gpu: learn and embed.")],
    data: Data = None,
    health_file: Annotated[
        Path | None, typer.Option(help="File for the health of the worker, for container probes.")
    ] = None,
) -> None:
    """Start one worker. You may run several; tasks are learned one at a time."""
    # Set before torch is imported: waiting threads sleep instead of spinning. With spinning threads, a partly busy
    # machine trains several times slower than its free cores would allow.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    settings = _start_logging(data)
    _require_schema(settings)

    from service import celery_worker

    celery_worker.health_file = health_file
    if queue == "gpu":
        # Registers the jobs of this queue.
        import trainer.worker.append_job
        import trainer.worker.learning_job
        import trainer.worker.shared_embedding  # noqa: F401

    celery_worker.celery_app.worker_main(
        [
            *(["--quiet"] if settings.log_format == "json" else []),  # no banner
            "worker",
            f"--queues={queue}",
            # CUDA does not survive a fork, and only one process may train; start more workers to scale out.
            "--pool=solo",
            f"--hostname={queue}@%h",
            f"--loglevel={settings.log_level}",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
        ]
    )


@app.command()
def migrate(data: Data = None) -> None:
    """Upgrade the catalog schema (`cinestrata up` does this itself)."""
    from service.catalog.migrations import upgrade_when_reachable

    settings = _start_logging(data)
    upgrade_when_reachable(settings)
    if settings.log_format == "json":
        import structlog

        structlog.get_logger(__name__).info("catalog_migrated")
    else:
        console.print("The catalog is up to date.")


def create_application() -> FastAPI:
    """Create the API application; exits with an error if its settings are unusable."""
    from api.app import create_app
    from index.errors import DeviceMissing
    from models.encoders.encoder_registry import import_query_library
    from models.errors import ModelError
    from service.core.settings import settings
    from service.storage.library_backbone import served_backbone

    try:
        app = create_app()
    except (DeviceMissing, ModelError, ValueError) as error:
        fail(str(error))
    used = settings()
    with suppress(Exception):  # a library that cannot be imported is reported by what loads the backbone
        import_query_library(served_backbone(used), device=used.query_device, precision=used.query_precision)
    # Imported modules live as long as the process. Without this, every full garbage collection would traverse them and
    # delay all searches by a few hundred milliseconds.
    gc.collect()
    gc.freeze()
    return app


def _start_logging(data: Path | None) -> Settings:
    """Load the settings and configure logging; in JSON format, errors are events, also those of the settings."""
    from service.core.process_setup import configure_logging

    if os.environ.get("CINESTRATA_LOG_FORMAT", "").strip() == "json":
        configure_logging("json", "INFO")
        error_console.failure_event = "start_failed"
    settings = data_folder_settings(data)
    configure_logging(settings.log_format, settings.log_level)
    return settings


def _require_schema(settings: Settings) -> None:
    """Exit with an error if the catalog has the schema of another version; both processes wait for a database."""
    from sqlalchemy.exc import OperationalError

    from service.catalog.database import engine
    from service.catalog.migrations import require_newest_schema

    with suppress(OperationalError), engine(settings).connect() as connection:
        require_newest_schema(connection)
