"""One warm child process that reads untrusted files: its environment, and requests and responses as lines of JSON."""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from media.errors import DecoderUnavailable

_ROOT = Path(__file__).resolve().parent.parent
_START_SECONDS = 60.0  # imports are slow on a busy machine
_GRACE_SECONDS = 1.0
LOWEST_PRIORITY = 19  # of background work
# The child inherits these variables, and none of the service's secrets.
_INHERITED_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "TMPDIR",
)


class ChildDied(Exception):
    """The child exited before it responded."""


class ChildHangs(Exception):
    """The child did not respond in time."""


class ChildProcess:
    """A module that runs as a child process, which is started when it is needed.

    The child is a plain subprocess, which works even in workers that may not have children of ``multiprocessing``.

    Args:
        module: When it is run, it calls :func:`serve_requests`.
        noun: What the child is, for errors.
        variables: More environment variables that it inherits.
        nice: Added to the priority's number.
    """

    def __init__(self, module: str, noun: str, variables: tuple[str, ...] = (), nice: int = 0) -> None:
        self._module = module
        self._noun = noun
        self._variables = (*_INHERITED_VARIABLES, *variables)
        self._nice = nice
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()

    @property
    def pid(self) -> int | None:
        """Process ID, of a process which may have died; None before the first request and after a failure."""
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not exited."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start a new process in place of a running one; raise DecoderUnavailable."""
        self.end()
        inherited = {key: os.environ[key] for key in self._variables if key in os.environ}
        self._process = subprocess.Popen(  # noqa: S603 — a module of this package
            [sys.executable, "-m", self._module],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
            env={**inherited, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            # Ctrl-C reaches only the parent, which ends the child. A new session would do that too, but Linux's
            # autogroup scheduling would then ignore the worker's priority.
            process_group=0,
        )
        if self._nice:
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, self._nice)
        try:
            self.receive(_START_SECONDS)
        except (ChildDied, ChildHangs) as error:
            status = self.end(_GRACE_SECONDS)
            raise DecoderUnavailable(
                f"the {self._noun} process does not start ({format_status(status)}); "
                f"run `python -m {self._module}` to see why"
            ) from error

    def send(self, request: dict[str, Any]) -> None:
        """Send a request; raise ChildDied."""
        if self._process is None or self._process.stdin is None:
            raise AssertionError("the child was started with pipes")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise ChildDied from error

    def receive(self, seconds: float) -> dict[str, Any]:
        """Wait for the next line; raise ChildDied or ChildHangs, after which it may be waited for again."""
        if self._process is None or self._process.stdout is None:
            raise AssertionError("the child was started with pipes")
        deadline = time.monotonic() + seconds
        readable = select.poll()  # select() would refuse descriptors above 1023
        readable.register(self._process.stdout)
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not readable.poll(left * 1000):
                raise ChildHangs
            chunk = os.read(self._process.stdout.fileno(), 65536)
            if not chunk:
                raise ChildDied
            self._received += chunk
        end = self._received.index(b"\n")
        line: dict[str, Any] = json.loads(self._received[:end])
        del self._received[: end + 1]
        return line

    def end(self, grace: float = 0.0) -> int | None:
        """End the process, which has ``grace`` seconds to exit by itself; return its status (None: there was none)."""
        process, self._process, self._received = self._process, None, bytearray()
        if process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        process.kill()
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with suppress(OSError):
                    pipe.close()
        return status


class ChildOwner:
    """Parent of a child process, which ends with the ``with`` statement; not thread-safe."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    @property
    def child_pid(self) -> int | None:
        """Process ID of the child, which may have died; None before the first video and after a failure."""
        return self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        self._child.end()


Respond = Callable[[dict[str, Any]], object]  # writes a line


def serve_requests(answer: Callable[[dict[str, Any], Respond], dict[str, Any]]) -> None:
    """In the child, write ``{"ready": true}``, then answer requests until standard input ends."""
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not look like a response

    def respond(response: dict[str, Any]) -> None:
        responses.write(json.dumps(response) + "\n")
        responses.flush()

    respond({"ready": True})
    for line in sys.stdin:
        respond(answer(json.loads(line), respond))
        gc.collect()  # frames in reference cycles are large


def limit_process(memory_bytes: int, seconds: float, file_bytes: int) -> None:
    """Set this process's limits on its address space, the CPU time of one request, and the size of a written file."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        # The parent gives up earlier; the CPU limit ends a child whose parent has died.
        (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds) + 2),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def format_status(status: int | None) -> str:
    """Name an exit status or the signal that ended a process."""
    if status is None or status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
