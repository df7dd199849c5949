"""Cost of an append, and of syncs that find nothing to do, while searches continue.

    python -m benchmarks.ingest.append_cost --videos 10000 --appended 1000 --out DIR

The command starts ``cinestrata up`` with the backbone ``tiny`` on an empty data folder, lets the service follow a
folder of tiny clips without captions (:mod:`benchmarks.ingest.clip_files`), and appends clips of another folder to the
domain. One client searches without a pause before, during and after the append, with a new text each time; a search
fails if it has an error or no results. Then the unchanged folder is synced several times, by the service and by
``cinestrata sync``. Only ratios within a run are comparable between machines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.embedded_service import FINAL_STATES, create, embedded_service

__all__ = ["main", "measure_append"]

_POLL_SECONDS = 0.2
_WORDS = ("car", "crystal", "robot", "bridge", "circle", "tree", "antenna", "ship", "actor", "fish")
_QUIET_SEARCHES = 500  # before and after the append
_SYNCS = 3


def measure_append(folder: Path, videos: int, appended: int, frames: int) -> dict[str, Any]:
    """Learn a domain, append to it while it is searched, and sync its unchanged folder.

    Args:
        folder: Folder of the clips and the library.
        videos: Number of videos of the domain.
        appended: Number of appended videos.
        frames: Frames per video.

    Returns:
        Seconds of the append and of the syncs, and latencies and failures of searches, as JSON values.
    """
    media = folder / "media"
    added = write_tiny_clips(media / "domain", videos + appended)[videos:]
    for path in added:  # files are distinct within one call
        (media / "added" / path).parent.mkdir(parents=True, exist_ok=True)
        (media / "domain" / path).replace(media / "added" / path)
    settings = {
        "CINESTRATA_BACKBONE": "tiny",
        "CINESTRATA_FRAMES": str(frames),
        "CINESTRATA_MEDIA_ROOT": str(media.resolve()),
        "CINESTRATA_LOG_LEVEL": "WARNING",
    }
    with embedded_service(folder / "library", settings) as api:
        sync = {"name": "clips", "source": "domain", "every_seconds": 86_400}
        api.post("/syncs", json=sync).raise_for_status()
        domain = _learned_domain(api)
        searches = _SearchLoop(str(api.base_url))
        with searches:
            before = searches.collect(_QUIET_SEARCHES)
            began = time.monotonic()
            specs = [{"uri": f"added/{path}"} for path in added]
            append = create(api, f"/tasks/{domain}/videos", {"videos": specs})
            accepted = time.monotonic() - began
            task = _wait(api, append)
            seconds = time.monotonic() - began
            during = searches.take()
            after = searches.collect(_QUIET_SEARCHES)
        syncs = [_sync(api, sync) for _ in range(_SYNCS)]
        command = [_sync_command(str(api.base_url), media / "domain") for _ in range(_SYNCS)]
        quiet = np.array([latency for latency, _ in [*before, *after]])
        busy = np.array([latency for latency, _ in during])
        return {
            "videos": videos,
            "appended": task["counts"]["appended"],
            "append_seconds": seconds,
            "accepted_seconds": accepted,
            "searches": {"before_and_after": len(quiet), "meanwhile": len(busy)},
            "failed_searches": sum(not found for _, found in [*before, *during, *after]),
            "p50_ms": _percentiles(quiet, busy, 50),
            "p99_ms": _percentiles(quiet, busy, 99),
            "sync_seconds": syncs,
            "sync_command_seconds": command,
        }


class _SearchLoop:
    """A client that searches in a thread without a pause, as a context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._taken: list[tuple[float, bool]] = []  # milliseconds, and whether the search succeeded
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._search, daemon=True)

    def __enter__(self) -> _SearchLoop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def take(self) -> list[tuple[float, bool]]:
        """Searches since the last call."""
        taken, self._taken = self._taken, []
        return taken

    def collect(self, count: int) -> list[tuple[float, bool]]:
        """The next searches, at least ``count``."""
        self.take()
        while len(self._taken) < count:
            time.sleep(_POLL_SECONDS)
        return self.take()

    def _search(self) -> None:
        number = 0
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as api:
            while not self._stopped.is_set():
                number += 1
                text = f"a {_WORDS[number % 10]} and a {_WORDS[number // 10 % 10]} {number}"
                start = time.perf_counter()
                try:
                    answer = api.get("/search", params={"q": text})
                    found = answer.is_success and bool(answer.json()["results"])
                except httpx.HTTPError:
                    found = False
                self._taken.append((1000 * (time.perf_counter() - start), found))


def _learned_domain(api: httpx.Client) -> str:
    """Id of the domain that the first run of the sync creates, once it is ready and searchable."""
    while not (tasks := api.get("/tasks").raise_for_status().json()):
        _check_sync(api)
        time.sleep(_POLL_SECONDS)
    task = _wait(api, tasks[0]["id"])
    while not api.get("/search", params={"q": "a car"}).is_success:
        time.sleep(_POLL_SECONDS)
    return str(task["id"])


def _check_sync(api: httpx.Client) -> dict[str, Any]:
    (sync,) = api.get("/syncs").raise_for_status().json()
    if sync["error"]:
        raise RuntimeError(f"the sync failed: {sync['error']}")
    return dict(sync)


def _wait(api: httpx.Client, task_id: str) -> dict[str, Any]:
    """A task once it is ready."""
    shown = time.monotonic()
    while (task := api.get(f"/tasks/{task_id}").raise_for_status().json())["state"] not in FINAL_STATES:
        if time.monotonic() - shown > 30:
            sys.stderr.write(f"{task['state']}: {task['progress']}\n")
            shown = time.monotonic()
        time.sleep(_POLL_SECONDS)
    if task["state"] != "ready":
        raise RuntimeError(f"the task ended as {task['state']}: {task['error']}")
    return dict(task)


def _sync(api: httpx.Client, sync: dict[str, Any]) -> float:
    """Seconds of a run by the service, in which every file must be unchanged."""
    former = _check_sync(api)["finished_at"]
    api.post("/syncs", json=sync).raise_for_status()
    while (run := _check_sync(api))["finished_at"] == former or run["running"]:
        time.sleep(_POLL_SECONDS)
    counts = run["counts"]
    if counts["new"] or counts["changed"] or not counts["unchanged"]:
        raise RuntimeError(f"the folder is not unchanged: {counts}")
    seconds = datetime.fromisoformat(run["finished_at"]) - datetime.fromisoformat(run["started_at"])
    return seconds.total_seconds()


def _sync_command(url: str, folder: Path) -> float:
    """Seconds of ``cinestrata sync --dry-run`` on the same folder, with the start of the process."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "cli.main",
        "sync",
        str(folder),
        "--name",
        "clips",
        "--dry-run",
        "--url",
        url,
    ]
    began = time.monotonic()
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds = time.monotonic() - began
    if "0 new, 0 changed" not in printed:
        raise RuntimeError(f"the folder is not unchanged: {printed}")
    return seconds


def _percentiles(quiet: np.ndarray, busy: np.ndarray, percent: float) -> dict[str, float]:
    before, meanwhile = float(np.percentile(quiet, percent)), float(np.percentile(busy, percent))
    return {"before_and_after": before, "meanwhile": meanwhile, "ratio": meanwhile / before}


def main(argv: list[str] | None = None) -> None:
    """Measure, print JSON, and write it to ``append-cost.json``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--videos", type=int, default=10_000)
    parser.add_argument("--appended", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=2, help="frames per video")
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    arguments = parser.parse_args(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.out) as folder:
        result = measure_append(Path(folder), arguments.videos, arguments.appended, arguments.frames)
    text = json.dumps(result, indent=2)
    (arguments.out / "append-cost.json").write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
