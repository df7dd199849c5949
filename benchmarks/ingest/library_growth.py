"""Measure what ingest costs as a library grows: domains of many videos, and libraries of many domains.

    python -m benchmarks.ingest.library_growth videos --sizes 5000,20000 --out DIR
    python -m benchmarks.ingest.library_growth domains --domains 1000 --out DIR

Both commands print JSON and write it to DIR. They start ``cinestrata up`` with a backbone on an empty data folder, send
the videos over HTTP as paths, and read states from the API. ``videos`` ingests one domain without captions per size,
each into its own library. ``domains`` ingests domains of three videos into one library: without captions, or with
captions, which the backbone's default method learns (``strata`` in one epoch), holding one out. The files are those of
:mod:`benchmarks.ingest.clip_files`. Only ratios between sizes are comparable between machines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.embedded_service import FINAL_STATES, create, embedded_service
from benchmarks.ingest.process_memory import recorded_memory

_POLL_SECONDS = 0.5
_SEARCHES = 200
_DOMAIN_VIDEOS = 3
_WINDOW = 10  # consecutive domains behind each figure
_CAPTION_SPLITS = ("train", "train", "test")  # of a captioned domain's videos
_WORDS = ("car", "crystal", "robot", "bridge", "circle", "tree", "antenna", "ship", "actor", "fish")
_STAGES = ("probing", "indexing")
_QUEUED_AHEAD = 20  # tasks waiting for the workers; a request creates one task


def ingest_domain(
    folder: Path, count: int, *, backbone: str, frames: int, part: int, keep: bool = False
) -> dict[str, Any]:
    """Ingest one domain without captions into an empty library, and search it.

    Args:
        part: Maximum number of videos per request; the rest are appended to the domain.

    Returns:
        Seconds and rates of the stages, memory, disk usage and search latency, as JSON values.
    """
    videos = [{"uri": str(path)} for path in write_tiny_clips(folder / "clips", count)]
    data = folder / f"library-{count}"
    tasks: list[_FollowedTask] = []
    with (
        embedded_service(data, _settings(folder / "clips", backbone, frames)) as api,
        recorded_memory() as memory,
    ):
        began = time.monotonic()
        for first in range(0, count, part):
            route = f"/tasks/{tasks[0].id}/videos" if tasks else "/tasks"
            name = {} if tasks else {"name": f"{count} videos"}
            created = create(api, route, {**name, "videos": videos[first : first + part]})
            tasks.append(_FollowedTask(created, data / "cache" / "frames"))
            tasks[-1].follow(api, partial(memory.report, first))
        seconds = time.monotonic() - began
        latency = _search_latency(api)
    parts = {"thumbnails": "thumbnails", "index": "index", "all": "."}
    disk = {name: _disk_bytes(data / path) for name, path in parts.items()}
    disk["frames"] = sum(task.frame_cache_bytes for task in tasks)
    disk["catalog"] = _disk_bytes(data, "catalog.sqlite3*")
    if not keep:
        shutil.rmtree(data)
    return {
        "videos": count,
        "seconds": seconds,
        "states": [task.seconds for task in tasks],
        "videos_per_second": {stage: _rates([task.progress[stage] for task in tasks]) for stage in _STAGES},
        "peak_mib": {role: record.peak_mib for role, record in memory.records.items()},
        "bytes_per_video": {
            role: {stage: record.slope(stage) for stage in _STAGES} for role, record in memory.records.items()
        },
        "disk_bytes": disk,
        "search_ms": latency,
    }


def ingest_domains(
    folder: Path, count: int, *, backbone: str, frames: int, is_captioned: bool, marks: Sequence[int]
) -> list[dict[str, Any]]:
    """Ingest domains of three videos, one by one.

    Args:
        is_captioned: Whether the videos have captions.
        marks: Numbers of domains at which to measure time, memory and search latency.

    Returns:
        Figures at each mark, as JSON values.
    """
    paths = write_tiny_clips(folder / "clips", count * _DOMAIN_VIDEOS)
    data = folder / f"library-of-{count}-domains"
    rows: list[dict[str, Any]] = []
    with embedded_service(data, _settings(folder / "clips", backbone, frames)) as api:
        began, done, finished = time.monotonic(), 0, []
        waiting: list[str] = []
        for number in range(count):
            body: dict[str, Any] = {
                "name": f"domain {number}",
                "videos": _videos(paths[_DOMAIN_VIDEOS * number :][:_DOMAIN_VIDEOS], number, is_captioned),
            }
            if is_captioned and backbone == "tiny":  # other backbones learn in closed form by default
                body["settings"] = {"epochs": 1}
            waiting.append(create(api, "/tasks", body))
            is_mark = number + 1 in marks
            while waiting and (is_mark or len(waiting) >= _QUEUED_AHEAD):
                task = api.get(f"/tasks/{waiting[0]}").raise_for_status().json()
                if task["state"] in FINAL_STATES:
                    if task["state"] != "ready":
                        raise RuntimeError(f"domain {done} ended as {task['state']}: {task['error']}")
                    waiting.pop(0)
                    done += 1
                    finished.append(_finish_time(task))
                else:
                    time.sleep(_POLL_SECONDS)
            if is_mark:
                with recorded_memory() as memory:
                    latency = _search_latency(api)
                    time.sleep(2)
                recent = np.diff(finished[-_WINDOW:])
                rows.append(
                    {
                        "domains": done,
                        "seconds_per_domain": statistics.median(recent) if len(recent) else None,
                        "seconds": time.monotonic() - began,
                        "memory_mib": {role: record.peak_mib for role, record in memory.records.items()},
                        "disk_bytes": {
                            "index": _disk_bytes(data / "index"),
                            "catalog": _disk_bytes(data, "catalog.sqlite3*"),
                        },
                        "search_ms": latency,
                    }
                )
                _log(json.dumps(rows[-1]))  # the next mark may be hours away
    return rows


def _videos(paths: Sequence[Path], number: int, is_captioned: bool) -> list[dict[str, Any]]:
    """Build a request's videos; captions name the domain and a word for the video."""
    videos: list[dict[str, Any]] = [{"uri": str(path)} for path in paths]
    if is_captioned:
        for position, (video, split) in enumerate(zip(videos, _CAPTION_SPLITS, strict=True)):
            word = _WORDS[(number + position) % len(_WORDS)]
            video |= {"captions": [f"a {word} of collection {number}"], "split": split}
    return videos


def _settings(media: Path, backbone: str, frames: int) -> dict[str, str]:
    return {
        "CINESTRATA_BACKBONE": backbone,
        "CINESTRATA_FRAMES": str(frames),
        "CINESTRATA_MEDIA_ROOT": str(media.resolve()),
        "CINESTRATA_LOG_LEVEL": "WARNING",
    }


class _FollowedTask:
    """A task that is followed over the API until it is ready.

    Attributes:
        seconds: Duration of each state.
        progress: Times and numbers of finished videos in each stage.
        frame_cache_bytes: Largest frame cache at any change of state; a ready task has none.
    """

    def __init__(self, task_id: str, frame_cache: Path) -> None:
        self.id = task_id
        self.frame_cache_bytes = 0
        self._frame_cache = frame_cache
        self.seconds: dict[str, float] = {}
        self.progress: dict[str, list[tuple[float, int]]] = {stage: [] for stage in _STAGES}

    def follow(self, api: httpx.Client, report: Callable[[str, int], object]) -> None:
        """Wait until the task ends; raise RuntimeError if it is not ready."""
        state, entered = "queued", time.monotonic()
        while state not in FINAL_STATES:
            task = api.get(f"/tasks/{self.id}").raise_for_status().json()
            at, stage, done = time.monotonic(), task["progress"]["stage"], task["progress"].get("done") or 0
            report(stage, done)
            if stage in self.progress:
                self.progress[stage].append((at, done))
            if task["state"] != state:
                self.seconds[state] = at - entered
                self.frame_cache_bytes = max(self.frame_cache_bytes, _disk_bytes(self._frame_cache))
                state, entered = task["state"], at
                _log(f"{task['counts']['videos']} videos: {state}")
            time.sleep(_POLL_SECONDS)
        if state != "ready":
            raise RuntimeError(f"the task ended as {state}: {task['error']}")


def _finish_time(task: dict[str, Any]) -> float:
    return datetime.fromisoformat(task["finished_at"]).timestamp()


def _search_latency(api: httpx.Client) -> dict[str, float]:
    """Time the first search, then percentiles over distinct queries, in milliseconds as the client sees them."""
    taken = []
    for number in range(_SEARCHES + 1):
        words = [_WORDS[number % len(_WORDS)], _WORDS[(number // len(_WORDS)) % len(_WORDS)]]
        start = time.perf_counter()
        answer = api.get("/search", params={"q": f"a {words[0]} and a {words[1]} {number}"})
        taken.append(1000 * (time.perf_counter() - start))
        if not answer.raise_for_status().json()["results"]:
            raise RuntimeError("a search of the library has no results")
    first, rest = taken[0], taken[1:]
    return {"first": first, "p50": float(np.percentile(rest, 50)), "p99": float(np.percentile(rest, 99))}


def _rates(tasks: Sequence[Sequence[tuple[float, int]]]) -> list[float]:
    """Compute videos per second over the first and second half of several tasks' progress."""
    seconds, videos, points = 0.0, 0, [(0.0, 0)]
    for task in tasks:
        for (start, before), (end, after) in itertools.pairwise(task):
            seconds, videos = seconds + end - start, videos + after - before
            points.append((seconds, videos))
    middle = min(points, key=lambda point: abs(point[1] - videos / 2))
    spans = ((points[0], middle), (middle, points[-1]))
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in spans if b[0] > a[0]]


def _disk_bytes(folder: Path, pattern: str = "**/*") -> int:
    """Measure the disk space allocated to files in a folder that match a pattern."""
    return sum(512 * file.stat().st_blocks for file in folder.glob(pattern) if file.is_file())


def _log(message: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {message}\n")
    sys.stderr.flush()


def main() -> None:
    """Parse the command line, measure, write JSON and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True)
    videos = commands.add_parser("videos", help="domains of many videos")
    videos.add_argument("--sizes", default="1000,5000", help="numbers of videos, separated by commas")
    videos.add_argument("--part", type=int, default=20_000, help="maximum videos per request")
    videos.add_argument("--keep", action="store_true", help="keep the libraries")
    videos.set_defaults(run=_measure_videos)
    domains = commands.add_parser("domains", help="a library of many domains")
    domains.add_argument("--domains", type=int, default=100)
    domains.add_argument("--captioned", action="store_true", help="give the videos captions")
    domains.set_defaults(run=_measure_domains)
    for command in (videos, domains):
        command.add_argument("--folder", type=Path, help="folder of the clips (default: a temporary one)")
        command.add_argument("--backbone", choices=("tiny", "small"), default="tiny")
        command.add_argument("--frames", type=int, default=8, help="frames per video")
        command.add_argument("--out", type=Path, default=Path("bench-ingest"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cinestrata-growth-") as temporary:
        run: Callable[[Path, argparse.Namespace], None] = options.run
        run(options.folder or Path(temporary), options)


def _measure_videos(folder: Path, options: argparse.Namespace) -> None:
    rows = []
    for size in map(int, options.sizes.split(",")):
        rows.append(
            ingest_domain(
                folder,
                size,
                backbone=options.backbone,
                frames=options.frames,
                part=options.part,
                keep=options.keep,
            )
        )
        (options.out / "videos.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(rows, indent=1))


def _measure_domains(folder: Path, options: argparse.Namespace) -> None:
    marks = [mark for mark in (10, 30, 100, 300, 1000, 3000) if mark < options.domains] + [options.domains]
    rows = ingest_domains(
        folder,
        options.domains,
        backbone=options.backbone,
        frames=options.frames,
        is_captioned=options.captioned,
        marks=marks,
    )
    (options.out / "domains.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
