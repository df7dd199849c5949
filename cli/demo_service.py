"""The embedded service as the demo starts it: exactly what ``cinestrata up`` is, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.child import die_with_parent
from cli.console import console, fail
from cli.folder import enter, running

__all__ = ["embedded_service", "interruptible"]

_READY = "Cinestrata is up at "
_STOP_SECONDS = 30


@contextmanager
def embedded_service(data: Path, port: int | None) -> Iterator[str]:
    """The URL of a service on this data folder: the one that runs there, or a new one that ends with the block."""
    holder = running(enter(data).run_dir)
    if holder and "url" in holder:
        console.print(f"Using the service that already runs on {data}.")
        yield holder["url"]
        return
    command = [sys.executable, "-P", "-m", "cli.main", "up", "--data", str(data)]
    command += [] if port is None else ["--port", str(port)]
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            process_group=0,  # Ctrl-C in the terminal is for the demo, which then ends this in order
            preexec_fn=die_with_parent(),
        )
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
    """SIGTERM ends the block like Ctrl-C does, so that everything is still stopped in order."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
