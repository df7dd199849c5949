"""A worker's maintenance thread: reconcile tasks, start due syncs, sweep unused files, report health."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import structlog

from cinestrata_schemas.operations import GpuMemory
from index.files.durable_files import replace_text
from service import operations
from service.backups.snapshots import sweep_unfinished_snapshots
from service.catalog import database
from service.catalog.database import session_scope
from service.catalog.leases import report_worker, sweep_worker_reports
from service.core.errors import CinestrataError
from service.core.settings import settings
from service.library import compaction
from service.library.alerts import evaluate_alerts
from service.storage import video_files
from service.storage.library_files import check_data_folder
from service.syncs import registered_syncs
from service.tasks import broker, lifecycle
from service.tasks.uploads import upload_store, uploaded_videos

RECONCILE_SECONDS = 5.0

_SWEEP_SECONDS = 600.0
_ALERT_SECONDS = 30.0
_GPU_QUERY = ("--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits")
_GPU_TIMEOUT_SECONDS = 10
_MIB = 1024**2

log = structlog.get_logger(__name__)


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
    try:
        free_bytes = shutil.disk_usage(settings().data_dir).free
    except OSError:
        free_bytes = None
    gpus = [memory.model_dump() for memory in read_gpu_memory()]
    with session_scope(write=True) as session:
        report_worker(session, free_bytes, gpus)


class MaintenanceThread(threading.Thread):
    """Reconciles every few seconds and sweeps every few minutes, until it is stopped."""

    def __init__(self, health_file: Path | None = None) -> None:
        super().__init__(name="maintenance", daemon=True)
        self._health_file = health_file
        self._stop_requested = threading.Event()

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
                    if caches := compaction.sweep_frame_caches():
                        log.info("unused_frame_caches_removed", files=caches)
                    video_files.remove_deleted_files()
                    if removed := uploaded_videos.sweep_uploads():
                        log.info("orphan_uploads_removed", uploads=removed)
                    if expired := upload_store.sweep_incoming():
                        log.info("expired_uploads_removed", uploads=len(expired))
                    if unfinished := sweep_unfinished_snapshots():
                        log.info("unfinished_snapshots_removed", folders=unfinished)
                    with session_scope(write=True) as session:
                        sweep_worker_reports(session)
                if time.monotonic() >= index_sweep_due:
                    index_sweep_due = time.monotonic() + _SWEEP_SECONDS
                    if not compaction.sweep_index():
                        index_sweep_due = 0.0  # in the next round
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
