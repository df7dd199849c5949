"""The bounded folder of downloads, shared by several processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from media import MediaError
from media.errors import SourceOutage
from media.sources.downloading import SourceCache

CHILD = """
import sys, time
from pathlib import Path
from media.sources.downloading import SourceCache

with SourceCache(Path(sys.argv[1]), 1000).file() as file:
    file.reserve(800)
    print("ready", flush=True)
    time.sleep(60)
"""


def test_space_of_other_files_is_not_given_away(tmp_path: Path) -> None:
    cache = SourceCache(tmp_path, max_bytes=1000, wait_seconds=0)
    with cache.file() as first, cache.file() as second:
        first.reserve(700)
        first.reserve(800)
        second.reserve(200)
        with pytest.raises(SourceOutage, match="full"):
            second.reserve(201)
    with cache.file() as third:
        third.reserve(1000)
        with pytest.raises(MediaError, match="1001 bytes; the limit is 1000 bytes"):
            third.reserve(1001)


def test_full_disk_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1024**3 + 500))
    cache = SourceCache(tmp_path, max_bytes=1000, wait_seconds=0)
    with cache.file() as first, cache.file() as second:
        first.reserve(300)
        with pytest.raises(SourceOutage, match="disk"):
            second.reserve(300)
        second.reserve(200)


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    cache = SourceCache(tmp_path, max_bytes=1000, wait_seconds=0)
    with cache.file() as file, pytest.raises(SourceOutage):
        file.reserve(300)
    child.kill()
    child.wait()
    child.stdout.close()
    with cache.file() as file:
        file.reserve(300)
        assert list(tmp_path.glob("*.download")) == [file.path]
