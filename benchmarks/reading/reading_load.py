"""Measure what reading costs the rest of a service: the time until clips are searchable, and searches meanwhile.

    python -m benchmarks.reading.reading_load --out DIR --clips FOLDER

In each round, the clips without captions are ingested with and without reading, each into an empty library, in turn.
Beside reading, searches are sent one after the other; the same ones are sent again once all is read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import httpx
import numpy as np

from benchmarks.ingest.clip_files import write_ordinary_clips
from benchmarks.ingest.embedded_service import create, embedded_service, wait_ready
from benchmarks.reporting.markdown_tables import write_json

_SEARCHES = 1000
_QUERIES = (
    "a platform with a train",
    "an invoice",
    "two people talk",
    "a map of the city",
    "a red car",
    "music",
)
_SUFFIXES = {".mp4", ".mkv", ".webm", ".mov", ".avi"}


def measure_round(clips: Path, folder: Path) -> dict[str, float]:
    """Ingest the clips with and without reading; returns seconds, and percentiles of searches in milliseconds."""
    figures: dict[str, float] = {}
    videos = [{"uri": str(path.resolve())} for path in sorted(clips.iterdir()) if path.suffix in _SUFFIXES]
    for name, read in (("off", "off"), ("on", "speech,screen")):
        settings = {"CINESTRATA_MEDIA_ROOT": str(clips.resolve()), "CINESTRATA_READ": read}
        with embedded_service(folder / name, settings | {"CINESTRATA_LOG_LEVEL": "WARNING"}) as api:
            began = time.monotonic()
            task = create(api, "/tasks", {"name": "clips", "videos": videos})
            wait_ready(api, task)
            figures[f"{name}_seconds"] = time.monotonic() - began
            if read != "off":
                list(_search(api))  # the first searches after the start are slower
                beside = list(_search(api, task))
                while _remaining(api, task):
                    time.sleep(1)
                idle = [taken for _, taken in zip(beside, _search(api), strict=False)]
                for state, taken in (("beside", beside), ("idle", idle)):
                    p50, p99 = np.percentile(taken, [50, 99])
                    figures |= {
                        f"{state}_p50": float(p50),
                        f"{state}_p99": float(p99),
                        "searches": len(taken),
                    }
    return figures


def _search(api: httpx.Client, reading: str | None = None) -> Iterator[float]:
    """Send distinct searches, as long as videos of a task are being read, and yield the milliseconds of each."""
    for number in range(_SEARCHES):
        if reading and number % 20 == 0 and not _remaining(api, reading):
            return
        began = time.perf_counter()
        text = f"{_QUERIES[number % len(_QUERIES)]} {number}"
        api.get("/search", params={"q": text}).raise_for_status()
        yield 1000 * (time.perf_counter() - began)


def _remaining(api: httpx.Client, task: str) -> int:
    return int(api.get(f"/tasks/{task}/reading").raise_for_status().json()["remaining"])


def main() -> None:
    """Parse the command line, measure, write JSON and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clips", type=Path, help="folder of videos; 100 drawn ones if omitted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench-ingest"))
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="cinestrata-reading-") as temporary:
        clips = options.clips or Path(temporary, "clips")
        if not options.clips:
            write_ordinary_clips(clips, 100)
        for number in range(options.rounds):
            rounds.append(measure_round(clips, Path(temporary, str(number))))
            sys.stderr.write(json.dumps(rounds[-1]) + "\n")
    ratios = {
        "time until clips are searchable, with reading ÷ without": ("on_seconds", "off_seconds"),
        "p50 of searches beside reading ÷ afterwards": ("beside_p50", "idle_p50"),
        "p99 of searches beside reading ÷ afterwards": ("beside_p99", "idle_p99"),
    }
    medians = {
        name: median(each[one] / each[other] for each in rounds) for name, (one, other) in ratios.items()
    }
    write_json(options.out / "reading-load.json", {"ratios": medians, "rounds": rounds})


if __name__ == "__main__":
    main()
