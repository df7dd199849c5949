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
import json
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.embedded_service import create, embedded_service, service_memory, wait_ready
from benchmarks.reporting.markdown_tables import write_json

_SEARCHES = 200
_DOMAIN_VIDEOS = 3
_WINDOW = 10  # consecutive domains behind each figure
_CAPTION_SPLITS = ("train", "train", "test")  # of a captioned domain's videos
_WORDS = ("car", "crystal", "robot", "bridge", "circle", "tree", "antenna", "ship", "actor", "fish")
_QUEUED_AHEAD = 20  # tasks waiting for the workers; a request creates one task


def ingest_videos(folder: Path, count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Ingest one domain without captions into an empty library, search it, and return figures as JSON values."""
    videos = [{"uri": str(path)} for path in write_tiny_clips(folder / "clips", count)]
    data = folder / f"library-{count}"
    frames = data / "cache" / "frames"
    cached: dict[str, int] = {}  # bytes of frames when a state was first seen

    def observe(task: dict[str, Any]) -> None:
        if task["state"] not in cached:
            cached[task["state"]] = _disk_bytes(frames)

    with embedded_service(data, _settings(folder / "clips", options)) as api:
        began, domain = time.monotonic(), ""
        for first in range(0, count, options.part):
            body: dict[str, Any] = {"videos": videos[first : first + options.part]}
            if domain:
                task = create(api, f"/tasks/{domain}/videos", body)
            else:
                task = domain = create(api, "/tasks", {"name": f"{count} videos", **body})
            wait_ready(api, task, observe)
        seconds = time.monotonic() - began
        latency = _search_latency(api)
        memory = {role: memory.peak / 2**20 for role, memory in service_memory().items()}
    return {
        "videos": count,
        "seconds": seconds,
        "peak_mib": memory,
        "disk_bytes": {
            **{name: _disk_bytes(data / name) for name in ("thumbnails", "index")},
            "frames": max(cached.values()),
            "catalog": _disk_bytes(data, "catalog.sqlite3*"),
        },
        "search_ms": latency,
    }


def ingest_domains(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Ingest domains of three videos, one by one, and return figures at growing numbers of domains as JSON values."""
    count: int = options.domains
    marks = {mark for mark in (10, 30, 100, 300, 1000, 3000) if mark < count} | {count}
    paths = write_tiny_clips(folder / "clips", count * _DOMAIN_VIDEOS)
    data = folder / "library"
    rows: list[dict[str, Any]] = []
    finished: list[float] = []
    waiting: list[str] = []
    with embedded_service(data, _settings(folder / "clips", options)) as api:
        began = time.monotonic()
        for number in range(count):
            part = paths[_DOMAIN_VIDEOS * number :][:_DOMAIN_VIDEOS]
            videos: list[dict[str, Any]] = [{"uri": str(path)} for path in part]
            body: dict[str, Any] = {"name": f"domain {number}", "videos": videos}
            if options.captioned:
                for index, (video, split) in enumerate(zip(videos, _CAPTION_SPLITS, strict=True)):
                    word = _WORDS[(number + index) % len(_WORDS)]
                    video |= {"captions": [f"a {word} of collection {number}"], "split": split}
                if options.backbone == "tiny":  # other backbones learn in closed form by default
                    body["settings"] = {"epochs": 1}
            waiting.append(create(api, "/tasks", body))
            is_mark = number + 1 in marks
            while waiting and (is_mark or len(waiting) >= _QUEUED_AHEAD):
                task = wait_ready(api, waiting.pop(0))
                finished.append(datetime.fromisoformat(task["finished_at"]).timestamp())
            if is_mark:
                recent = np.diff(finished[-_WINDOW:])
                row = {
                    "domains": number + 1,
                    "seconds_per_domain": statistics.median(recent) if len(recent) else None,
                    "seconds": time.monotonic() - began,
                    "search_ms": _search_latency(api),
                    "memory_mib": {role: memory.own / 2**20 for role, memory in service_memory().items()},
                    "disk_bytes": {
                        "index": _disk_bytes(data / "index"),
                        "catalog": _disk_bytes(data, "catalog.sqlite3*"),
                    },
                }
                rows.append(row)
                sys.stderr.write(json.dumps(row) + "\n")  # the next mark may be hours away
    return rows


def _settings(media: Path, options: argparse.Namespace) -> dict[str, str]:
    return {
        "CINESTRATA_BACKBONE": options.backbone,
        "CINESTRATA_FRAMES": str(options.frames),
        "CINESTRATA_MEDIA_ROOT": str(media.resolve()),
        "CINESTRATA_LOG_LEVEL": "WARNING",
    }


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
    p50, p99 = np.percentile(taken[1:], [50, 99])
    return {"first": taken[0], "p50": float(p50), "p99": float(p99)}


def _disk_bytes(folder: Path, pattern: str = "**/*") -> int:
    """Measure the disk space allocated to files in a folder that match a pattern."""
    return sum(512 * file.stat().st_blocks for file in folder.glob(pattern) if file.is_file())


def main() -> None:
    """Parse the command line, measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("measure", choices=("videos", "domains"))
    parser.add_argument("--sizes", default="1000,5000", help="videos: their numbers, separated by commas")
    parser.add_argument("--part", type=int, default=20_000, help="videos: maximum number per request")
    parser.add_argument("--domains", type=int, default=100, help="domains: their number")
    parser.add_argument("--captioned", action="store_true", help="domains: give the videos captions")
    parser.add_argument("--backbone", choices=("tiny", "small"), default="tiny")
    parser.add_argument("--frames", type=int, default=8, help="frames per video")
    parser.add_argument("--out", type=Path, default=Path("bench-ingest"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cinestrata-growth-") as folder:
        if options.measure == "domains":
            rows = ingest_domains(Path(folder), options)
        else:
            rows = [ingest_videos(Path(folder), int(size), options) for size in options.sizes.split(",")]
    write_json(options.out / f"{options.measure}.json", rows)


if __name__ == "__main__":
    main()
