"""Folders that one process of a test run writes for all of them, and libraries that one test makes for others."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest

from service.catalog.database import dispose
from service.core.settings import settings


def shared_folder(factory: pytest.TempPathFactory, name: str, write: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` of this test run. The first process that asks for it writes it; others wait."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # contains the folders of all processes
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = Path(mkdtemp(prefix=f"{name}-", dir=root))
            write(unfinished)
            unfinished.rename(folder)
    return folder


def restore_or_make(saved: Path, make: Callable[[], object]) -> None:
    """Copy a saved library into the data folder; make it there first, and save it, where there is none yet."""
    if saved.exists():
        dispose()
        shutil.rmtree(settings().data_dir)
        shutil.copytree(saved, settings().data_dir)
    else:
        make()
        dispose()
        shutil.copytree(settings().data_dir, saved)
