"""The product as its users start it: commands in processes of their own, and a look at what is left of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest


class Machine:
    """Starts commands of the product and finds their processes. Everything is killed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: object, env: Mapping[str, object] | None = None, **how: Any
    ) -> subprocess.Popen[str]:
        """Start ``cinestrata …`` with nobody's settings but those of ``env``."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
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
        """Run ``cinestrata …`` to its end."""
        process = self.start(*arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=280)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def up(self, data: Path) -> tuple[subprocess.Popen[str], str]:
        """Start ``cinestrata up`` and return it with its URL, once it is ready."""
        complaints = self.folder / "up.err"
        with complaints.open("a") as stderr:
            process = self.start("up", "--data", data, "--port", 0, stdout=subprocess.PIPE, stderr=stderr)
        assert process.stdout is not None
        line = process.stdout.readline()
        said = re.fullmatch(r"Cinestrata is up at (http://127\.0\.0\.1:\d+)\n", line)
        assert said, (line, complaints.read_text())
        return process, said[1]

    @staticmethod
    def processes(data: Path, containing: str = "") -> list[int]:
        """Processes that work on a data folder, found by what they were started with."""
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
    def until(condition: Callable[[], object], what: str, seconds: float = 200) -> None:
        """Wait for something that will happen; generous, for it says nothing about speed."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.1)

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Where the tests of a module start processes."""
    started = Machine(tmp_path_factory.mktemp("machine"))
    yield started
    started.end()
