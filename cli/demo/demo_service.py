"""The embedded service as the demo starts it: what ``cinestrata up`` is, in a process of its own.

It measures every query mode, to show what each keeps.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cli.console import console, fail
from cli.embedded.child_process import die_with_parent
from cli.embedded.data_folder_lock import data_folder_settings, running

__all__ = ["embedded_service", "interruptible"]

_READY = "Cinestrata is up at "
_STOP_SECONDS = 30
_SAME_REQUEST = 1.0


@contextmanager
def embedded_service(data: Path, port: int | None) -> Iterator[str]:
    """The URL of a service on this data folder: the one that runs there, or a new one that ends with the block."""
    holder = running(data_folder_settings(data).run_dir)
    if holder and "url" in holder:
        console.print(f"Using the service that already runs on {data}.")
        yield holder["url"]
        return
    command = [sys.executable, "-P", "-m", "cli.main", "up", "--data", str(data)]
    command += [] if port is None else ["--port", str(port)]
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env={"CINESTRATA_MEASURED_MODES": "all", **os.environ},
            process_group=0,  # Ctrl-C in the terminal is for the demo, which then ends this in order
            preexec_fn=die_with_parent(),
        ) as process,
    ):
        try:
            with console.status("Starting API, workers and broker …"):
                line = process.stdout.readline() if process.stdout else ""
            if not line.startswith(_READY):
                process.wait()
                complaints.seek(0)
                fail(complaints.read().strip() or "The service did not start.")
            yield line.removeprefix(_READY).strip()
        finally:
            _stop(process)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM interrupt the block alike, so that everything is stopped in order."""
    first = 0.0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if not first or now - first > _SAME_REQUEST:  # it often comes twice, to the process and to its group
            first = first or now
            raise KeyboardInterrupt

    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, interrupt) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        with console.status("Stopping …"):
            process.wait(_STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()  # its children die with it
        process.wait()
