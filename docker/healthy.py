#!/usr/bin/env python3
"""Health check of a container; exit status 0 means healthy.

``healthy api`` requests ``/readyz``. ``healthy worker FILE`` reads the file that a worker's maintenance thread writes
every few seconds, even during training. The file must be recent, and the worker must reach the catalog and the broker.
``healthy worker FILE --alive`` requires only a recent file: a liveness probe must not restart workers because the
database is down.

The check imports only the standard library, so it takes milliseconds however large the product is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

MAX_AGE_SECONDS = 60.0


def check_api() -> str | None:
    """Check the API, and return its fault, if any."""
    direct = build_opener(ProxyHandler({}))  # the container's proxy, if any, must not answer instead
    url = f"http://127.0.0.1:{os.environ.get('CINESTRATA_PORT', '8000')}/readyz"
    try:
        direct.open(url, timeout=8).close()
    except OSError as error:
        return f"{url}: {error}"
    return None


def check_worker(path: Path, only_alive: bool) -> str | None:
    """Check a worker, and return its fault, if any."""
    try:
        age = time.time() - path.stat().st_mtime
        checks: dict[str, str] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
    if age > MAX_AGE_SECONDS:
        return f"{path} is {age:.0f} seconds old; the worker is not running or hangs."
    failed = [f"{name}: {state}" for name, state in checks.items() if state != "ok"]
    return "; ".join(failed) if failed and not only_alive else None


def main(arguments: list[str]) -> int:
    process, *rest = arguments
    problem = check_api() if process == "api" else check_worker(Path(rest[0]), only_alive="--alive" in rest)
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
    return problem is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
