"""Write ``library-1.0.0.tar.xz``, a small library of version 1.0.0 that later versions must read.

Run it at the tag v1.0.0, with that version's ``cinestrata``: ``python -m tests.data.make_library_1_0_0 ARCHIVE``. The
archive is never written again: a library that a later version writes proves nothing about this one.

The archive has two folders. ``data`` is the data folder: catalog, index, previews, a snapshot in ``backups``, uploads,
and the followed folder ``media/snowfield``. ``originals`` has the folders that commands read, with the files' times.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.data.world import Clip, make_domain, write_mp4

_LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
_CAPTIONS = {
    "microscope": (
        "a grey paramecium swims to the left",
        "a magenta cell sinks slowly",
        "a green bacillus turns around",
        "two blue cells touch and part",
        "a brown ciliate shrinks",
        "an amber cell divides",
        "a violet bacillus rests on the glass",
        "a pale amoeba stretches",
    ),
    "snowfield": (
        "a seal slides over the ice",
        "a red snowmobile crosses the slope",
        "an ice skate lies in fresh snow",
        "a sled stands below the peaks",
        "",
    ),
    "night": (
        "a yellow taxi stops at the lights",
        "a lorry climbs the hill in the rain",
        "a scooter turns right on the bridge",
        "a beetle car parks under the lamp",
    ),
}
_WORLD = {"microscope": "microscope", "snowfield": "snowfield", "night": "night-traffic"}


def main(archive: Path) -> None:
    """Fill a library with the commands that a person uses, and pack it."""
    with tempfile.TemporaryDirectory(prefix="library-1.0.0-") as temporary:
        folder = Path(temporary)
        _write_originals(folder / "originals", folder / "data" / "media")
        with _service(folder) as run:
            _sync_once(folder / "originals" / "night", run)
            _follow(folder / "data" / "media" / "snowfield", run)
            _learn_append_and_judge(folder / "originals", run)
            run("snapshot")
        with closing(sqlite3.connect(folder / "data" / "catalog.sqlite3")) as catalog:
            catalog.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log is ten times as large as the catalog
        for name in ("run", "cache", "checkpoints"):
            shutil.rmtree(folder / "data" / name, ignore_errors=True)
        with tarfile.open(archive, "w:xz", preset=9) as tar:
            for name in ("data", "originals"):
                tar.add(folder / name, arcname=name, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _write_originals(originals: Path, media: Path) -> None:
    clips = {name: _clips(world) for name, world in _WORLD.items()}
    rows = ["file,id,caption,split,place,magnification"]
    for number, caption in enumerate(_CAPTIONS["microscope"]):
        if number < 6:
            _write_clip(originals / "microscope" / f"{number}.mp4", clips["microscope"])
            split, place = ("test", "lab") if number == 5 else ("train", "pond" if number % 2 else "sea")
            rows.append(f"{number}.mp4,cell-{number},{caption},{split},{place},{100 * (number + 1)}")
        else:
            _write_clip(originals / "more" / f"{number}.mp4", clips["microscope"])
            (originals / "more" / f"{number}.txt").write_text(f"{caption}\n")
    (originals / "microscope" / "captions.csv").write_text("\n".join(rows) + "\n")
    (originals / "microscope" / "3.srt").write_text(
        "1\n00:00:00,100 --> 00:00:00,400\nNow we add the saline solution.\n\n"
        "2\n00:00:00,500 --> 00:00:00,900\nThe membranes burst.\n"
    )
    for name, folder in (("snowfield", media / "snowfield"), ("night", originals / "night")):
        for number, caption in enumerate(_CAPTIONS[name]):
            path = folder / ("" if number else "north") / f"{name}-{number}.mp4"
            _write_clip(path, clips[name])
            if caption:
                path.with_suffix(".txt").write_text(f"{caption}\n")
    (media / "snowfield" / "snowfield-1.json").write_text(json.dumps({"camera": "east", "depth": 12}))
    broken = media / "snowfield" / "broken.mp4"
    broken.write_bytes(b"not a video")
    os.utime(broken, (_LONG_AGO, _LONG_AGO))


def _clips(world: str) -> Iterator[Clip]:
    return iter(make_domain(world, seed=7, train=4, val=0, test=0, categories=3, captions=1))


def _write_clip(path: Path, clips: Iterator[Clip], modified: float = _LONG_AGO) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_mp4(next(clips), path, size=48, fps=4, seconds=1.0)
    os.utime(path, (modified, modified))


@contextmanager
def _service(folder: Path) -> Iterator[Callable[..., Any]]:
    """Start the service, and yield a function that runs a command on it and returns its JSON document."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
    environment |= {
        # With small, the archive has 4.8 MB: the sums and maps of one domain hardly compress.
        "CINESTRATA_BACKBONE": "tiny",
        "CINESTRATA_METHOD": "zero_shot",
        "CINESTRATA_TORCH_THREADS": "1",
    }
    command = [sys.executable, "-P", "-m", "cli.main"]
    process = subprocess.Popen(
        [*command, "up", "--data", folder / "data", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None

    def run(*arguments: object) -> Any:
        # In a folder without videos: a path that exists here would be sent as an absolute one.
        called = subprocess.run(
            [*command, *map(str, arguments), "--url", found[0], "--json"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return json.loads(called.stdout)

    try:
        yield run
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _learn_append_and_judge(originals: Path, run: Callable[..., Any]) -> None:
    run("ingest", originals / "microscope", "--method", "analytic")
    run("ingest", originals / "more", "--into", "microscope")
    run("delete", "cell-2", "--yes")
    run("videos", "edit", "cell-1", "--caption", "a magenta cell sinks like a stone", "--set", "checked=true")
    run("feedback", "right", "the mitosis everyone asks for", "cell-4")
    run("feedback", "wrong", "cell", "cell-5")  # first without this verdict


def _sync_once(folder: Path, run: Callable[..., Any]) -> None:
    """Sync a folder outside the media root, so that its files are uploaded, and again after a change."""
    run("sync", folder)
    _change(folder / "night-1.mp4")
    run("sync", folder)


def _follow(folder: Path, run: Callable[..., Any]) -> None:
    """Follow a folder below the media root. At the end, one file has an old version that the next run deletes."""
    _run_sync(run)
    _change(folder / "snowfield-2.mp4")
    _run_sync(run)
    _change(folder / "snowfield-3.mp4")
    _run_sync(run)
    videos = run("videos", "list", "--task", "snowfield")["videos"]
    (uncaptioned,) = (video["id"] for video in videos if video["uri"] == "snowfield/snowfield-4.mp4")
    run("videos", "edit", uncaptioned, "--caption", "a hare in its winter coat", "--set", "seen=twice")
    run("feedback", "right", "shy animal", uncaptioned)


def _run_sync(run: Callable[..., Any]) -> None:
    """Register the sync, which runs it at once, and wait for the run and its task."""
    registered = datetime.now(UTC)
    run("sync", "snowfield", "--every", "15m")
    while True:
        (sync,) = run("syncs")
        unfinished = [task for task in run("tasks", "list") if task["state"] not in ("ready", "failed")]
        ended = sync["finished_at"] and datetime.fromisoformat(sync["finished_at"]) > registered
        if ended and not unfinished:
            assert sync["error"] is None, sync
            return
        time.sleep(0.5)


def _change(path: Path) -> None:
    """Replace a clip by another one; later syncs tell by its time that it has not changed since."""
    time.sleep(3)
    before = path.stat().st_size
    clips = iter(
        make_domain("radar", seed=len(path.stem) + before, train=1, val=0, test=0, categories=1, captions=1)
    )
    _write_clip(path, clips, time.time())
    assert path.stat().st_size != before
    time.sleep(3)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
