"""Celery workers: the probing, sync and maintenance jobs, and how worker processes start and stop.

Start workers with ``cinestrata worker --queue cpu`` and ``cinestrata worker --queue gpu``, or with Celery's own
command: ``celery -A service.celery_worker worker --queues cpu`` and
``celery -A service.celery_worker worker --queues gpu --pool solo
--include trainer.worker.learning_job,trainer.worker.append_job,trainer.worker.shared_embedding``.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from celery.apps import worker as celery_worker_app
from celery.signals import setup_logging, worker_init, worker_ready, worker_shutdown, worker_shutting_down

from service import operations
from service.access.audit_log import Actor, set_process_actor
from service.catalog import leases
from service.core.process_setup import configure_logging
from service.core.settings import settings
from service.core.tracing import start_tracing
from service.maintenance import MaintenanceThread
from service.syncs import registered_syncs
from service.tasks import lifecycle, probing
from service.tasks.broker import MAINTAIN, PROBE, SYNC, celery_app
from service.tasks.lifecycle import send_due
from service.webhooks.deliveries import DeliveryThread

__all__ = ["celery_app", "worker_name"]


def worker_name() -> str:
    """Name this worker for leases: host, process and thread."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_native_id()}"


@celery_app.task(name=PROBE, ignore_result=True)  # type: ignore[untyped-decorator]
def probe(task_id: str) -> None:
    """Probe a task's videos, or chunks of them if another worker has claimed the task, then send due messages."""
    claim = lifecycle.claim_probing(task_id, worker_name())
    if claim is not None:
        with claim:
            probing.probe(claim)
    else:
        probing.probe_free_chunks(task_id, worker_name())
    send_due()


@celery_app.task(name=SYNC, ignore_result=True)  # type: ignore[untyped-decorator]
def sync(sync_id: str) -> None:
    """Run a registered sync, unless it is running."""
    registered_syncs.run_sync(sync_id)


@celery_app.task(name=MAINTAIN, ignore_result=True)  # type: ignore[untyped-decorator]
def maintain(job_id: str) -> None:
    """Run a maintenance job, unless it is running."""
    operations.run_job(int(job_id))


health_file: Path | None = None  # set by the worker command; container probes read the file
_maintenance_threads: list[MaintenanceThread | DeliveryThread] = []


@worker_init.connect  # type: ignore[untyped-decorator]
def _name_actor(**_: Any) -> None:
    set_process_actor(Actor("worker", socket.gethostname()))  # the pool's processes inherit it


@worker_ready.connect  # type: ignore[untyped-decorator]
def _start_maintenance(**_: Any) -> None:
    leases.stopping.clear()
    _maintenance_threads.extend([MaintenanceThread(health_file), DeliveryThread()])
    for thread in _maintenance_threads:
        thread.start()


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _release_tasks(**_: Any) -> None:
    # Runs in the signal handler, while a worker with the solo pool is in the middle of its task.
    leases.stopping.set()


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def _stop_maintenance(**_: Any) -> None:
    while _maintenance_threads:
        _maintenance_threads.pop().stop()


@setup_logging.connect  # type: ignore[untyped-decorator]
def _configure_worker_logging(**_: Any) -> None:
    configured = settings()
    configure_logging(configured.log_format, configured.log_level)
    start_tracing(configured.otlp_endpoint, "cinestrata-worker")
    # Celery reports a failed task's job as succeeded, because its message needs no retry; tasks log their own end.
    logging.getLogger("celery.app.trace").setLevel(logging.WARNING)
    if configured.log_format == "json":
        # Celery prints the messages of its signal handlers as plain text.
        celery_worker_app.safe_say = _write_json_line


def _write_json_line(message: str, *_: Any) -> None:
    """Write a message as a log line without the logging module, whose locks a signal handler must not take."""
    event = {
        "event": message.strip(),
        "level": "info",
        "logger": "celery.apps.worker",
        "timestamp": datetime.now(UTC).isoformat(),
    }
    os.write(2, f"{json.dumps(event)}\n".encode())
