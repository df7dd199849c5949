"""Processes of a run are found by role, and those of other runs are not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import redis

from benchmarks.chaos.deployments import find_processes, process_environment, redis_command


def test_redis_is_found_after_it_has_replaced_its_title(tmp_path: Path) -> None:
    messages = tmp_path / "run" / "redis"
    messages.mkdir(parents=True)
    command = [*redis_command(0, messages), "--unixsocket", str(messages / "s")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd="/") as server:
        try:
            while not (messages / "s").exists():
                time.sleep(0.02)
            with redis.Redis(unix_socket_path=str(messages / "s")) as client:
                client.ping()
            assert find_processes(tmp_path / "run" / "faults", "redis") == [server.pid]
            assert find_processes(tmp_path / "other" / "faults", "redis") == []
        finally:
            server.kill()


def test_worker_is_found_by_its_queue(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)", "cli.main", "worker", "--queue", "gpu"]
    environment = process_environment(tmp_path, {})
    environment.pop("PYTHONPATH")
    with subprocess.Popen(command, env=environment) as worker:
        try:
            assert find_processes(tmp_path, "learning worker") == [worker.pid]
            assert find_processes(tmp_path, "probing worker") == []
            assert find_processes(tmp_path / "other", "learning worker") == []
        finally:
            worker.kill()
