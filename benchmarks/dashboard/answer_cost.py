"""Bytes and milliseconds of the answers that the library page reads, for checkouts in the same run."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

PATHS = (
    "/tasks",
    "/tasks?kind=domain&limit=10",
    "/overview",
    "/library",
    "/forgetting",
    "/forgetting/map?bins=38",
)
_FILL = Path(__file__).with_name("library_filling.py")


def main() -> None:
    """Measure checkouts and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "checkouts", nargs="+", help="name=folder of each checkout, such as before=../old after=."
    )
    parser.add_argument("--domains", type=int, nargs="+", default=[3, 50, 200])
    parser.add_argument("--requests", type=int, default=5, help="requests for each path")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(_measure(options.requests)))
        return
    print("| domains | checkout | path | bytes | first (ms) | again (ms) | unchanged (ms) |")
    print("|---:|---|---|---:|---:|---:|---:|")
    for domains in options.domains:
        for name, _, folder in (checkout.partition("=") for checkout in options.checkouts):
            for row in _run(Path(folder).resolve(), domains, options.requests):
                unchanged = "–" if row["unchanged"] is None else f"{row['unchanged']:.1f}"
                print(
                    f"| {domains} | {name} | `{row['path']}` | {row['bytes']:,} | {row['first']:.1f} "
                    f"| {row['again']:.1f} | {unchanged} |"
                )


def _run(checkout: Path, domains: int, requests: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {
            "PYTHONPATH": str(checkout),
            "CINESTRATA_DATA_DIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        fill = [sys.executable, str(_FILL), folder, "--domains", str(domains)]
        subprocess.run(fill, cwd=checkout, env=env, check=True)
        measure = [sys.executable, __file__, "none", "--measure", "--requests", str(requests)]
        done = subprocess.run(measure, cwd=checkout, env=env, check=True, capture_output=True)
        rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return rows


def _measure(requests: int) -> list[dict[str, Any]]:
    """Measure the application of this process. Paths that the checkout does not have are left out."""
    from fastapi.testclient import TestClient

    from api.app import create_app

    client = TestClient(create_app(), base_url="http://127.0.0.1")
    client.get("/livez")
    rows = []
    for path in PATHS:
        answers, seconds = zip(*(_timed(client, path) for _ in range(requests)), strict=True)
        if answers[0].status_code != 200:
            continue
        tag = answers[0].headers.get("etag")
        unchanged = (
            [_timed(client, path, {"If-None-Match": tag})[1] for _ in range(requests)] if tag else None
        )
        rows.append(
            {
                "path": path,
                "bytes": len(answers[0].content),
                "first": 1000 * seconds[0],
                "again": 1000 * statistics.median(seconds[1:]),
                "unchanged": 1000 * statistics.median(unchanged) if unchanged else None,
            }
        )
    return rows


def _timed(client: Any, path: str, headers: dict[str, str] | None = None) -> tuple[Any, float]:
    start = time.perf_counter()
    answer = client.get(path, headers=headers)
    return answer, time.perf_counter() - start


if __name__ == "__main__":
    main()
