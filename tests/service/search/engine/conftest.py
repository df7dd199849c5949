"""Libraries of birds and cars, and their search engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from models.backbones.backbone import Backbone
from service.core import request_limits
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.snapshots import snapshot_manager
from tests.service.search.caption_library import BIRDS, CARS, Library, settled

# Tensors are small: a second thread costs more than it saves, in particular on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def few_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 20 results of a page."""
    monkeypatch.setattr(request_limits, "MAX_RESULTS", 20)


@pytest.fixture
def library(configured: Settings, backbone: Backbone) -> Library:
    """Birds and cars, in the embedding space of the backbone."""
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS)
    return library


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, backbone: Backbone
) -> Iterator[tuple[Library, SearchEngine]]:
    """A library of birds and cars and its engine, shared by tests that change nothing."""
    with settled(tmp_path_factory.mktemp("shared"), backbone) as configured:
        library = Library(configured, backbone, "zero_shot")
        library.add_task("birds", BIRDS)
        library.add_task("cars", CARS)
        service = SearchEngine(configured)
        assert service.snapshots.refresh()
        yield library, service


@pytest.fixture
def pass_retry_interval(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Function that advances the clock of the snapshot manager by more than a retry interval."""
    elapsed = [0.0]

    def advance() -> None:
        elapsed[0] += 31

    clock = SimpleNamespace(perf_counter=time.perf_counter, monotonic=lambda: time.monotonic() + elapsed[0])
    monkeypatch.setattr(snapshot_manager, "time", clock)
    return advance


@pytest.fixture
def flip_last_byte() -> Callable[[Path], None]:
    """Function that changes the last byte of a file; a second call restores it."""

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    return flip
