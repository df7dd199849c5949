"""Celery workers: the probing, sync and maintenance jobs, maintenance in between, and how processes start and stop.

Start workers with ``cinestrata worker --queue cpu`` and ``cinestrata worker --queue gpu``, or with Celery's own
command: ``celery -A service.celery_worker worker --queues cpu`` and
``celery -A service.celery_worker worker --queues gpu --pool solo
--include trainer.worker.learning_job,trainer.worker.append_job,trainer.worker.shared_embedding``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from celery.apps import worker as celery_worker_app
from celery.signals import setup_logging, worker_init, worker_ready, worker_shutdown, worker_shutting_down

from cinestrata_schemas.operations import GpuMemory
from index.files.durable_files import replace_text
from service import operations
from service.access.audit_log import Actor, set_process_actor
from service.backups.snapshots import sweep_unfinished_snapshots
from service.catalog import database, leases
from service.catalog.database import session_scope
from service.catalog.leases import report_worker, sweep_worker_reports
from service.core.errors import CinestrataError
from service.core.process_setup import configure_logging, lower_thread_priority
from service.core.settings import settings
from service.core.tracing import start_tracing
from service.library import deletion
from service.library.alerts import evaluate_alerts
from service.reading.reading_worker import ReadingThread
from service.search.library_words import write_words
from service.storage import video_files
from service.storage.library_files import check_data_folder, disk_space
from service.syncs import registered_syncs
from service.tasks import broker, lifecycle, probing, upgrades, upload_store, uploaded_videos
from service.tasks.broker import CPU_QUEUE, MAINTAIN, PROBE, SYNC, celery_app
from service.tasks.lifecycle import send_due
from service.webhooks.deliveries import DeliveryThread

__all__ = ["celery_app", "worker_name"]

RECONCILE_SECONDS = 5.0
_SWEEP_SECONDS = 600.0
_ALERT_SECONDS = 30.0
_GPU_QUERY = ("--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits")
_GPU_TIMEOUT_SECONDS = 10
_MIB = 1024**2

health_file: Path | None = None  # set by the worker command; container probes read the file
_maintenance_threads: list[MaintenanceThread | DeliveryThread | ReadingThread] = []
log = structlog.get_logger(__name__)


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


@worker_init.connect  # type: ignore[untyped-decorator]
def _name_actor(**_: Any) -> None:
    set_process_actor(Actor("worker", socket.gethostname()))  # the pool's processes inherit it


@worker_ready.connect  # type: ignore[untyped-decorator]
def _start_maintenance(**_: Any) -> None:
    leases.stopping.clear()
    _maintenance_threads.extend([MaintenanceThread(health_file), DeliveryThread()])
    if CPU_QUEUE in celery_app.amqp.queues.consume_from:
        _maintenance_threads.append(ReadingThread(worker_name()))
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


def read_gpu_memory() -> list[GpuMemory]:
    """Read each GPU's used and total memory with ``nvidia-smi``; empty without a GPU or its driver.

    A CUDA call would occupy several hundred megabytes on the device in each process that reports, and the process could
    no longer fork children that use the device.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(  # noqa: S603 (no part of the command is input)
            [program, *_GPU_QUERY],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GPU_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # no device for the driver, or a driver that hangs
        return []
    # Lines such as "0, 1024, 81559" (MiB); a device may report no memory.
    numbers = re.findall(r"^(\d+), *(\d+), *(\d+) *$", answer.stdout, re.ASCII | re.MULTILINE)
    return [
        GpuMemory(device=int(device), used_bytes=int(used) * _MIB, total_bytes=int(total) * _MIB)
        for device, used, total in numbers
    ]


def write_health(path: Path) -> None:
    """Replace this worker's health file, which container probes read (``docker/healthy.py``)."""
    checks = {
        "catalog": "ok",
        "broker": "ok" if broker.is_reachable() else "The broker doesn't respond.",
        "data_folder": check_data_folder(settings()),
    }
    try:
        database.ping()
    except CinestrataError as error:
        checks["catalog"] = error.detail
    try:
        replace_text(path, json.dumps(checks))
    except OSError as error:
        log.warning("health_file_not_written", path=str(path), reason=str(error))


def _report_worker() -> None:
    free_bytes, _ = disk_space()
    gpus = [memory.model_dump() for memory in read_gpu_memory()]
    with session_scope(write=True) as session:
        report_worker(session, free_bytes, gpus)


def _write_words() -> None:
    """Write the words again if they are missing or damaged, or if videos were edited or deleted."""
    lower_thread_priority()
    write_words()


class MaintenanceThread(threading.Thread):
    """Reconciles every few seconds and sweeps every few minutes, until it is stopped."""

    def __init__(self, health_file: Path | None = None) -> None:
        super().__init__(name="maintenance", daemon=True)
        self._health_file = health_file
        self._stop_requested = threading.Event()
        self._word_writer = threading.Thread()

    def run(self) -> None:
        """Run a round at once, then one every ``RECONCILE_SECONDS``."""
        sweep_due = index_sweep_due = alerts_due = 0.0  # on the monotonic clock
        while True:
            try:
                report = lifecycle.reconcile()
                if report.recovered or report.failed or report.cancelled:
                    log.info(
                        "tasks_reconciled",
                        recovered=report.recovered,
                        failed=report.failed,
                        cancelled=report.cancelled,
                    )
                registered_syncs.send_due_syncs()
                operations.send_due_jobs()
                if time.monotonic() >= alerts_due:
                    alerts_due = time.monotonic() + _ALERT_SECONDS
                    _report_worker()
                    evaluate_alerts()
                if time.monotonic() >= sweep_due:
                    sweep_due = time.monotonic() + _SWEEP_SECONDS
                    if caches := deletion.sweep_frame_caches():
                        log.info("unused_frame_caches_removed", files=caches)
                    video_files.remove_deleted_files()
                    if removed := uploaded_videos.sweep_uploads():
                        log.info("orphan_uploads_removed", uploads=removed)
                    if expired := upload_store.sweep_incoming():
                        log.info("expired_uploads_removed", uploads=len(expired))
                    upgrades.settle_old_upgrades()
                    if unfinished := sweep_unfinished_snapshots():
                        log.info("unfinished_snapshots_removed", folders=unfinished)
                    with session_scope(write=True) as session:
                        sweep_worker_reports(session)
                if time.monotonic() >= index_sweep_due:
                    index_sweep_due = time.monotonic() + _SWEEP_SECONDS
                    if not deletion.sweep_index():
                        index_sweep_due = 0.0  # in the next round
                    if not self._word_writer.is_alive():  # those of a large library take minutes
                        self._word_writer = threading.Thread(
                            target=_write_words, name="write-words", daemon=True
                        )
                        self._word_writer.start()
            except CinestrataError as error:
                log.warning("maintenance_postponed", reason=str(error))
            except Exception:
                log.exception("maintenance_failed")
            if self._health_file is not None:
                write_health(self._health_file)
            if self._stop_requested.wait(RECONCILE_SECONDS):
                return

    def stop(self) -> None:
        """End after the current round, and wait for that."""
        self._stop_requested.set()
        if self.is_alive():
            self.join()
