"""Run a service as a child process, and read what its processes use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

FINAL_STATES = ("ready", "failed", "cancelled")
COMMAND = (sys.executable, "-P", "-m", "cli.main")
_STOP_SECONDS = 30.0
_READY_SECONDS = 600.0  # a busy machine takes minutes to start all processes
_TIMEOUT_SECONDS = 600.0  # per request; a task of a hundred thousand videos is checked file by file
# Role of a process → part of its command line, whose arguments end with a zero byte.
_ROLES = {
    "API": b"cli.main\0serve\0",
    "probing worker": b"--queue\0cpu\0",
    "learning worker": b"--queue\0gpu\0",
    "broker": b"redis-server",
}


class NotReady(Exception):
    """A service did not become ready in time; the message names it."""


@contextmanager
def embedded_service(data: Path, settings: Mapping[str, str]) -> Iterator[httpx.Client]:
    """Run ``cinestrata up`` on a data folder during the ``with`` block; yields a client for its API."""
    with (
        running_service(["up", "--data", str(data)], settings) as (url, _),
        httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False) as api,
    ):
        yield api


@contextmanager
def running_service(arguments: Sequence[str], settings: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Run a command that serves an API during the ``with`` block, and yield its URL and process ID; raise NotReady,
    with its log, if it ends or takes too long to start.
    """
    port = free_port()
    argv, url = [*COMMAND, *arguments, "--port", str(port)], f"http://127.0.0.1:{port}"
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "env": os.environ | settings}
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(argv, stderr=log, **streams) as process:
        try:
            wait_until_ready(url, process)
            yield url, process.pid
        except NotReady as error:
            log.seek(0)
            raise NotReady(f"{error}: {log.read()}") from error
        finally:
            process.terminate()
            process.wait(_STOP_SECONDS)


def free_port() -> int:
    """Find a TCP port that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def wait_until_ready(url: str, process: subprocess.Popen[Any] | None = None) -> None:
    """Wait ten minutes until an API is ready; raise NotReady if it is not, or if the process it needs has ended."""
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise NotReady(f"the service at {url} ended with status {process.returncode}")
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}/readyz", trust_env=False, timeout=5).status_code == httpx.codes.OK:
                return
        time.sleep(0.2)
    raise NotReady(f"the service at {url} is not ready after {_READY_SECONDS:g} s")


def create(api: httpx.Client, route: str, body: Mapping[str, Any]) -> str:
    """Create a task or an append, and return its ID; raise RuntimeError if the service refuses the request."""
    response = api.post(route, json=body)
    if response.is_error:
        raise RuntimeError(f"the service refuses a request: {response.text[:300]}")
    return str(response.json()["id"])


def wait_ready(
    api: httpx.Client, task: str, observe: Callable[[dict[str, Any]], object] = lambda details: None
) -> dict[str, Any]:
    """Wait until a task is ready, observing each state; raise RuntimeError if it ends otherwise."""
    while True:
        details: dict[str, Any] = api.get(f"/tasks/{task}").raise_for_status().json()
        observe(details)
        if details["state"] == "ready":
            return details
        if details["state"] in FINAL_STATES:
            raise RuntimeError(f"task {details['name']} is {details['state']}: {details['error']}")
        time.sleep(0.5)


class ProcessMemory(NamedTuple):
    """A process's resident memory in bytes: shared pages of files, its own ones, and their peak so far."""

    mapped: int
    own: int
    peak: int


def process_memory(pid: int) -> ProcessMemory:
    """Read a process's memory."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    fields = {line[0]: line[1:] for line in lines if line}
    return ProcessMemory(*(1024 * int(fields[name][0]) for name in ("RssFile:", "RssAnon:", "VmHWM:")))


def processor_seconds(pid: int) -> float:
    """Read a process's processor time since its start, over all threads."""
    # The process name, in parentheses, can contain any character; user and system time are fields 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def service_memory() -> dict[str, ProcessMemory]:
    """Read the memory of the service processes below this one, by role."""
    return {role: process_memory(pid) for role, pid in service_processes().items()}


def service_processes() -> dict[str, int]:
    """Map the roles of the service processes below this one to their process IDs."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    pids: dict[str, int] = {}
    for pid in sorted(parents):
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                for role in (role for role, part in _ROLES.items() if part in command):
                    pids.setdefault(role, pid)
    return pids
