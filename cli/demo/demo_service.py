"""The embedded service of the demo: ``cinestrata up`` as a child process."""

from __future__ import annotations

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
from cli.embedded.data_folder import data_folder_settings, has_ended, read_lock_holder

_READY_PREFIX = "Cinestrata is up at "
_STOP_SECONDS = 30
_DUPLICATE_SIGNAL_SECONDS = 1.0


@contextmanager
def embedded_service(data: Path, port: int | None) -> Iterator[str]:
    """The URL of a service on a data folder: a running one, or a new one that stops with the block.

    Args:
        port: Port of a new service; None takes it from the settings.
    """
    holder = read_lock_holder(data_folder_settings(data, uses_running_broker=False).run_dir)
    if holder and "url" in holder and not has_ended(holder):
        console.print(f"Using the service that already runs on {data}.")
        yield holder["url"]
        return
    command = [sys.executable, "-P", "-m", "cli.main", "up", "--data", str(data)]
    command += [] if port is None else ["--port", str(port)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,  # Ctrl-C in the terminal reaches only the demo, which stops the service in order
            preexec_fn=die_with_parent(),
        ) as process,
    ):
        try:
            with console.status("Starting API, workers and broker …"):
                line = process.stdout.readline() if process.stdout else ""
            if not line.startswith(_READY_PREFIX):
                process.wait()
                errors.seek(0)
                fail(errors.read().strip() or "The service did not start.")
            yield line.removeprefix(_READY_PREFIX).strip()
        finally:
            _stop(process)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for both SIGINT and SIGTERM, so that the block stops its processes in order."""
    first = 0.0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        # A terminal often sends the signal twice, to the process and to its group.
        if not first or now - first > _DUPLICATE_SIGNAL_SECONDS:
            first = first or now
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        with console.status("Stopping …"):
            process.wait(_STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()  # its children are killed with it
        process.wait()
