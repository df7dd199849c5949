"""Libraries of birds and cars, and their search engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from models.backbones.backbone import Backbone
from models.encoders.tower_query_backbone import AdaptedQueryEncoder
from service.core import request_limits
from service.core.settings import Settings
from service.search.snapshots import snapshot_manager
from tests.service.search.caption_library import Library, learn_birds_and_cars


@pytest.fixture(autouse=True)
def few_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 20 results of a page."""
    monkeypatch.setattr(request_limits, "MAX_RESULTS", 20)


@pytest.fixture
def library(configured: Settings, backbone: Backbone) -> Library:
    """Birds and cars, in the embedding space of the backbone."""
    library = Library(configured, backbone, "zero_shot")
    learn_birds_and_cars(library)
    return library


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
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, ...]]]:
    """Tasks, modes and tokens of each call of an adapted query encoder, sorted."""
    calls: list[list[tuple[str, ...]]] = []
    encode = AdaptedQueryEncoder.encode_pairs

    def watched(self: AdaptedQueryEncoder, texts: Sequence[Any], tasks: Sequence[str], mode: str) -> Any:
        calls.append(sorted((task, mode, str(list(text))) for text, task in zip(texts, tasks, strict=True)))
        return encode(self, texts, tasks, mode)

    monkeypatch.setattr(AdaptedQueryEncoder, "encode_pairs", watched)
    return calls
