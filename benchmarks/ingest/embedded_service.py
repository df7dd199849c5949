"""Run ``cinestrata up`` as a child process, with more workers on its data folder if needed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

FINAL_STATES = ("ready", "failed", "cancelled")
_READY_PREFIX = "Cinestrata is up at "
_WORKER_READY = b"ready."  # in the log of a Celery worker
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_TIMEOUT_SECONDS = 600.0  # per request; a task of a hundred thousand videos is checked file by file
_COMMAND = (sys.executable, "-P", "-m", "cli.main")
WORKER_NICE = 10  # as `cinestrata up` starts its workers


@contextmanager
def embedded_service(data: Path, settings: Mapping[str, str]) -> Iterator[httpx.Client]:
    """Run ``cinestrata up`` on a data folder during the ``with`` block; yields a client for its API.

    Args:
        settings: The service's settings by environment variable.

    Raises:
        RuntimeError: The service does not start; the message contains its error output.
    """
    with tempfile.TemporaryFile("w+") as errors:
        argv = [*_COMMAND, "up", "--data", str(data), "--port", "0"]
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **settings}
        ) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                if not line.startswith(_READY_PREFIX):
                    process.wait()
                    errors.seek(0)
                    raise RuntimeError(f"the service does not start: {errors.read()}")
                url = line.removeprefix(_READY_PREFIX).strip()
                with httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False) as api:
                    yield api
            finally:
                process.terminate()
                process.wait(_STOP_SECONDS)


@contextmanager
def additional_workers(data: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Run one more worker per queue during the ``with`` block, which begins once they accept messages.

    Arguments as for :func:`embedded_service`.
    """
    environment = {**os.environ, **settings, "CINESTRATA_DATA_DIR": str(data)}
    workers: dict[Path, subprocess.Popen[bytes]] = {}
    try:
        for queue in ("cpu", "gpu"):
            log = data / "run" / f"additional-{queue}.log"
            with log.open("wb") as file:
                workers[log] = subprocess.Popen(
                    [*_COMMAND, "worker", "--queue", queue],
                    stdout=file,
                    stderr=file,
                    env=environment,
                    preexec_fn=_lower_priority,
                )
        deadline = time.monotonic() + _START_SECONDS
        while not all(_WORKER_READY in log.read_bytes() for log in workers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"a worker does not start; see {data / 'run'}")
            time.sleep(0.1)
        yield
    finally:
        for worker in workers.values():
            worker.terminate()
        for worker in workers.values():
            worker.wait(_STOP_SECONDS)


def _lower_priority() -> None:
    os.nice(WORKER_NICE)


def create(api: httpx.Client, route: str, body: Mapping[str, Any]) -> str:
    """Create a task or an append, and return its ID.

    Raises:
        RuntimeError: The service refuses the request.
    """
    response = api.post(route, json=body)
    if response.is_error:
        raise RuntimeError(f"the service refuses a request: {response.text[:300]}")
    return str(response.json()["id"])
