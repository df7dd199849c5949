"""The Celery worker's side: what is run for a message, and the repair round that runs in every worker.

Start workers with ``celery -A service.celery_worker worker --queues cpu`` and
``celery -A service.celery_worker worker --queues gpu --pool solo --include trainer.worker.learning_job``.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import structlog
from celery.signals import setup_logging, worker_ready, worker_shutdown, worker_shutting_down

from index.files.durable_files import replace_text
from service.catalog import database
from service.core.errors import CinestrataError
from service.core.logging import configure
from service.core.settings import settings
from service.library import compaction
from service.tasks import archives, broker, lifecycle, probing
from service.tasks.broker import CPU_QUEUE, GPU_QUEUE, LEARN, PROBE, celery_app, send_learn, send_probe
from service.tasks.lifecycle import shutdown

__all__ = [
    "CPU_QUEUE",
    "GPU_QUEUE",
    "LEARN",
    "PROBE",
    "Reconciler",
    "celery_app",
    "send_due",
    "send_learn",
    "send_probe",
    "worker_name",
    "write_health",
]

RECONCILE_SECONDS = 5.0
_SWEEP_SECONDS = 600.0

log = structlog.get_logger(__name__)
send_due = lifecycle.send_due


def worker_name() -> str:
    """Who holds a lease, for people to read: host, process, thread."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_native_id()}"


@celery_app.task(name=PROBE, ignore_result=True)  # type: ignore[untyped-decorator]
def probe(task_id: str) -> None:
    """Examine a task's videos, if that is still to be done, then wake the learning worker."""
    claim = lifecycle.claim_probing(task_id, worker_name())
    if claim is not None:
        with claim:
            probing.probe(claim)
    send_due()


def write_health(path: Path | None) -> None:
    """Replace the health file of this worker, which container probes read (``docker/healthy.py``).

    Args:
        path: Path of the file; None writes nothing.
    """
    if path is None:
        return
    checks = {"catalog": "ok", "broker": "ok" if broker.is_reachable() else "The broker does not answer."}
    try:
        database.ping()
    except CinestrataError as error:
        checks["catalog"] = error.detail
    try:
        replace_text(path, json.dumps(checks))
    except OSError as error:
        log.warning("health_file_not_written", path=str(path), reason=str(error))


class Reconciler(threading.Thread):
    """Runs ``lifecycle.reconcile`` every few seconds, and sweeps every few minutes, until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="reconciler", daemon=True)
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """One round at once, then one every ``RECONCILE_SECONDS``."""
        due = 0.0  # on the monotonic clock
        while True:
            try:
                done = lifecycle.reconcile()
                if done.recovered or done.failed or done.cancelled:
                    log.info(
                        "reconciled", recovered=done.recovered, failed=done.failed, cancelled=done.cancelled
                    )
                if time.monotonic() >= due:
                    due = time.monotonic() + _SWEEP_SECONDS
                    compaction.sweep_index()
                    if swept := archives.sweep():
                        log.info("uploads without a task removed", uploads=swept)
            except CinestrataError as error:
                log.warning("reconciling again later", reason=str(error))
            except Exception:
                log.exception("reconciling failed; again later")
            write_health(settings().health_file)
            if self._stop_asked.wait(RECONCILE_SECONDS):
                return

    def stop(self) -> None:
        """End after the current round, and wait for it."""
        self._stop_asked.set()
        if self.is_alive():
            self.join()


_reconcilers: list[Reconciler] = []


def _start_reconciler(**_: Any) -> None:
    shutdown.reset()
    _reconcilers.append(Reconciler())
    _reconcilers[-1].start()


def _give_tasks_back(**_: Any) -> None:
    # Runs inside the signal handler, while a solo worker is in the middle of its task.
    shutdown.request_stop()


def _stop_reconciler(**_: Any) -> None:
    while _reconcilers:
        _reconcilers.pop().stop()


def _log_like_the_rest(**_: Any) -> None:
    configure(settings())


worker_ready.connect(_start_reconciler)
worker_shutting_down.connect(_give_tasks_back)
worker_shutdown.connect(_stop_reconciler)
setup_logging.connect(_log_like_the_rest)
