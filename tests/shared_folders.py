"""A folder that one process of a test run writes for all of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest


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
