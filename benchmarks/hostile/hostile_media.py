"""Send corrupted media files through the probing worker: ``python -m benchmarks.hostile.hostile_media``.

The probing worker's job runs in this process, on its own library with SQLite and without a broker. Its decoder
processes have the product's limits. The report counts the outcomes of each kind, and everything that must not happen:
exceptions in the worker, connections from a decoder, and files outside the data folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from sqlalchemy import select

from benchmarks.hostile.corrupted_media import KINDS, Bases, valid_files
from cinestrata_schemas.tasks import TaskSpec
from media.video_limits import VideoLimits
from service.catalog.database import dispose, session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import Video
from service.core.settings import settings
from service.library.deletion import delete_task
from service.tasks import commands, lifecycle, probing

_BATCH = 250  # files per task
# Part of a rejection's reason → outcome. The first match counts.
_OUTCOMES = (
    ("crashed the decoder", "decoder process ended"),
    ("took longer than", "time limit"),
    ("too much memory", "memory limit"),
    ("more than", "pixel limit"),
    ("at most", "duration or size limit"),
    ("same content as", "copy of another input"),
)


def run(inputs: int, seed: int) -> dict[str, object]:
    """Probe corrupted files, the same for a seed, and report outcomes by kind, violations as sentences, and costs."""
    with tempfile.TemporaryDirectory(prefix="cinestrata-hostile-") as temporary:
        root = Path(temporary)
        for name in ("data", "temp", "home"):
            (root / name).mkdir()
        environment = {
            "CINESTRATA_DATA_DIR": str(root / "data"),
            "CINESTRATA_BACKBONE": "tiny",
            "CINESTRATA_LOG_LEVEL": "ERROR",
            "TMPDIR": str(root / "temp"),
            "HOME": str(root / "home"),
        }
        with patch.dict(os.environ, environment), patch.object(tempfile, "tempdir", None):
            dispose()
            settings.cache_clear()
            try:
                return _probe_all(root, inputs, seed)
            finally:
                dispose()
                settings.cache_clear()


def _probe_all(root: Path, inputs: int, seed: int) -> dict[str, object]:
    upgrade(settings())
    dice = random.Random(seed)
    files = valid_files()
    names, shares = list(KINDS), [share for share, _ in KINDS.values()]
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in (*names, "valid files")}
    violations: list[str] = []
    started = time.monotonic()
    # Otherwise, a worker that rejects everything would pass. Libraries imported now write to their own caches.
    _probe_batch("valid", [("valid files", content) for content in files.values()], outcomes)
    before = _outside_files(root)
    kinds = dice.choices(names, shares, k=inputs)
    with _connections() as (address, connections):
        bases = Bases(files, address)
        for first in range(0, inputs, _BATCH):
            batch = [(kind, KINDS[kind][1](dice, bases)) for kind in kinds[first : first + _BATCH]]
            try:
                violations += _probe_batch(f"batch-{first}", batch, outcomes)
            except Exception:
                violations.append(f"the worker raised after input {first}: {traceback.format_exc(limit=3)}")
            print(
                f"{min(first + _BATCH, inputs)} of {inputs}, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
            )
    violations += [f"a decoder opened a connection from {peer}" for peer in connections]
    outside = sorted(_outside_files(root) - before)
    violations += [f"{path.relative_to(root)} was written outside the data folder" for path in outside]
    if rejected := [kind for kind in outcomes["valid files"] if kind != "accepted"]:
        violations.append(f"valid files were not accepted: {rejected}")
    total = sum((outcomes[kind] for kind in names), Counter())
    columns = ("accepted", "rejected", *(name for _, name in reversed(_OUTCOMES)))
    return {
        "inputs": inputs,
        "seed": seed,
        "outcomes": {kind: dict(counts) for kind, counts in outcomes.items()},
        "violations": violations,
        "columns": ["inputs", *columns, "violations"],
        "rows": [[inputs, *(total[name] for name in columns), len(violations)]],
        "seconds": round(time.monotonic() - started),
        "peak_worker_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _probe_batch(name: str, files: list[tuple[str, bytes]], outcomes: dict[str, Counter[str]]) -> list[str]:
    """Probe files as one task, and count the outcomes; returns violations."""
    folder = settings().media_root / name
    folder.mkdir(parents=True)
    for number, (_, content) in enumerate(files):
        (folder / f"{number}.mp4").write_bytes(content)
    videos = [{"uri": f"{name}/{number}.mp4", "id": f"{name}-{number}"} for number in range(len(files))]
    task = commands.create_task(TaskSpec.model_validate({"name": name, "videos": videos})).task.id
    claim = lifecycle.claim_probing(task, "hostile")
    if claim is None:
        raise RuntimeError(f"task {task} cannot be claimed")
    violations = []
    with claim:  # records an exception as the task's failure
        try:
            probing.probe(claim)
        except Exception:
            violations.append(f"the worker raised: {traceback.format_exc(limit=3)}")
            raise
    with session_scope() as session:
        rows = session.scalars(select(Video).where(Video.task_id == task)).all()
    for row in rows:
        kind, content = files[int(row.id.rsplit("-", 1)[1])]
        outcomes[kind][_outcome(row.status, row.reason)] += 1
        if row.status == "pending":
            violations.append(f"an input ({kind}) has no result")
        facts = (row.width or 0, row.height or 0, row.frames or 0, row.duration or 0.0)
        if row.status == "accepted" and not _is_plausible(*facts, len(content)):
            violations.append(f"an accepted input ({kind}) states width, height, frames, seconds {facts}")
    for number in range(len(files)):
        (folder / f"{number}.mp4").unlink()
    if commands.get_task(task).state not in ("ready", "failed", "cancelled"):
        commands.cancel_task(task)
    delete_task(task)
    return violations


def _is_plausible(width: int, height: int, frames: int, seconds: float, size: int) -> bool:
    """Check that a video's stored facts are within the limits, and possible for a file of this size in bytes."""
    limits = VideoLimits()
    return (
        0 < width * height <= limits.max_pixels and 0 <= seconds <= limits.max_seconds and 0 < frames <= size
    )


def _outside_files(root: Path) -> set[Path]:
    """Find the files below the root that are not in the data folder."""
    return {path for path in root.rglob("*") if path != root / "data" and root / "data" not in path.parents}


def _outcome(status: str, reason: str | None) -> str:
    if status != "rejected":
        return status
    return next((name for part, name in _OUTCOMES if part in (reason or "")), "rejected")


@contextmanager
def _connections() -> Iterator[tuple[str, list[str]]]:
    """Serve on a local URL, which playlists among the inputs name; yields it and the peers that connect."""
    peers: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        stop = threading.Event()

        def accept() -> None:
            while not stop.is_set():
                try:
                    connection, peer = server.accept()
                except TimeoutError:
                    continue
                connection.close()
                peers.append(str(peer))

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/video.mp4", peers
        finally:
            stop.set()
            thread.join()


def main() -> int:
    """Run the harness, write its JSON report, and print a table. Returns 1 if there are violations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("hostile-media.json"))
    arguments = parser.parse_args()
    report = run(arguments.inputs, arguments.seed)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
