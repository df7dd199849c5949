"""Measure how many edits PostgreSQL takes per second from several writers; a part of ``make bench-search``.

    python -m benchmarks.search.edit_rate --out DIR

Each writer edits a domain of its own, with one transaction per edit. Commits wait for the disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import bindparam, update

from benchmarks.reporting.markdown_tables import write_json
from service.catalog.database import dispose, session_scope
from service.catalog.domain_videos import count_edit
from service.catalog.migrations import upgrade
from service.catalog.tables import Task, Video
from service.core.settings import settings

_EDIT = (
    update(Video)
    .where(Video.vector_id == bindparam("video"))
    .values(captions=bindparam("captions", type_=Video.captions.type))
)


def _edit(domain: int, seconds: float) -> int:
    """Edit a domain's video again and again, and count the edits."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count += 1
        with session_scope(write=True) as session:
            session.connection().execute(_EDIT, {"video": domain, "captions": [f"{count}"]})
            count_edit(session, f"{domain}", [domain], captions=True, metadata=False)
    return count


def main() -> None:
    """Start a server, measure the rate with one writer and with several, print and write it."""
    from pgserver.postgres_server import get_server  # a wheel for some Pythons only

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.edit_rate", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("bench-search"), help="folder of the results")
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 8, 16], help="numbers of writers")
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cinestrata-bench-") as folder:
        server = get_server(Path(folder) / "postgres")
        os.environ |= {"CINESTRATA_DATA_DIR": folder, "CINESTRATA_DATABASE_URL": server.get_uri()}
        upgrade(settings())
        now, rates = datetime.now(UTC), {}
        with session_scope(write=True) as session:
            for number in range(1, 1 + max(options.writers)):
                name = f"{number}"
                fields = {"method": "analytic", "state": "ready", "created_at": now}
                session.add(Task(id=name, name=name, position=number, **fields))
                session.flush()
                session.add(Video(vector_id=number, id=name, task_id=name, uri=f"{name}.mp4", added_at=now))
        for writers in options.writers:
            with ThreadPoolExecutor(writers) as threads:
                counts = threads.map(_edit, range(1, 1 + writers), [options.seconds] * writers)
                rates[writers] = sum(counts) / options.seconds
        dispose()
        server.cleanup()
    write_json(options.out / "edit-rate.json", {"edits_per_second": rates})


if __name__ == "__main__":
    main()
