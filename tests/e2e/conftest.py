"""Commands of the product as separate processes, and the processes that they leave."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest


class Machine:
    """Starts commands of the product and finds their processes; kills all of them at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: object, env: Mapping[str, object] | None = None, **how: Any
    ) -> subprocess.Popen[str]:
        """Start ``cinestrata …`` with the settings of ``env`` alone; by default, no models read the videos."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
        clean["CINESTRATA_READ"] = "file"
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cli.main", *map(str, arguments)],
            env={**clean, **{name: str(value) for name, value in (env or {}).items()}},
            text=True,
            **how,
        )
        self._started.append(process)
        return process

    def run(
        self, *arguments: object, env: Mapping[str, object] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``cinestrata …`` until it ends."""
        process = self.start(*arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def up(self, data: Path, env: Mapping[str, object] | None = None) -> tuple[subprocess.Popen[str], str]:
        """Start ``cinestrata up`` and return the process with its URL once the service is ready."""
        error_log = self.folder / "up.err"
        with error_log.open("a") as stderr:
            process = self.start(
                "up", "--data", data, "--port", 0, env=env, stdout=subprocess.PIPE, stderr=stderr
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        started = re.fullmatch(r"Cinestrata is up at (http://127\.0\.0\.1:\d+)\n", line)
        assert started, (line, error_log.read_text())
        return process, started[1]

    @staticmethod
    def processes(data: Path, containing: str = "") -> list[int]:
        """Return the process IDs of processes that were started on a data folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            ours = f"CINESTRATA_DATA_DIR={data}\0" in environment or str(data) in command
            if command and ours and containing in command:
                found.append(int(entry.name))
        return found

    @staticmethod
    def until(condition: Callable[[], object], description: str, seconds: float = 600) -> None:
        """Poll a condition; the bound only ends a test that would never end."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"still waiting after {seconds} seconds: {description}"
            time.sleep(0.1)

    @staticmethod
    def free_port() -> int:
        """Return a port that no process listens on."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            return int(free.getsockname()[1])

    @staticmethod
    def answers(url: str) -> bool:
        """Return whether a service answers a GET request with success."""
        try:
            return httpx.get(url).is_success
        except httpx.TransportError:
            return False

    def end(self) -> None:
        """Kill the processes that still run."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Machine on which the tests of a module start processes."""
    started = Machine(tmp_path_factory.mktemp("machine"))
    yield started
    started.end()
