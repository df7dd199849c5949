"""Captions of videos: encoded once per task, without delaying requests for other tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest

from models.backbones.backbone import Backbone
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.snapshots.query_vector_cache import QueryVectorCache
from tests.service.search.caption_library import BIRDS, CARS, Library

TIMEOUT_SECONDS = 20


class _SlowEncoding:
    """Encoding of captions that blocks for one task until ``release`` is set; records the encoded tasks."""

    def __init__(self, encode: Callable[..., np.ndarray]) -> None:
        self.tasks: list[str] = []
        self.started, self.release, self.is_broken = Event(), Event(), False
        self._encode = encode

    def __call__(self, cache: QueryVectorCache, texts: Sequence[str], mode: str, task: str) -> np.ndarray:
        self.tasks.append(task)
        if task == "tsk_birds":
            self.started.set()
            assert self.release.wait(TIMEOUT_SECONDS)
        if self.is_broken:
            raise Unavailable("broken")
        return self._encode(cache, texts, mode, task)


@pytest.fixture
def encoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[_SlowEncoding]:
    encoding = _SlowEncoding(QueryVectorCache.encode_uncached)
    monkeypatch.setattr(
        QueryVectorCache, "encode_uncached", lambda cache, *arguments: encoding(cache, *arguments)
    )
    yield encoding
    encoding.release.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def search_engine(configured: Settings, backbone: Backbone, service: SearchEngine) -> SearchEngine:
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS)
    assert service.snapshots.refresh()
    return service


def test_captions_of_a_task_are_served_while_those_of_another_are_encoded(
    search_engine: SearchEngine, encoding: _SlowEncoding, pool: ThreadPoolExecutor
) -> None:
    slow = pool.submit(search_engine.caption_video, "birds-0")
    assert encoding.started.wait(TIMEOUT_SECONDS)
    quick = pool.submit(search_engine.caption_video, "cars-0").result(TIMEOUT_SECONDS)
    assert [caption.video_id for caption in quick.captions][:1] == ["cars-0"]
    assert not slow.done()
    encoding.release.set()
    assert slow.result(TIMEOUT_SECONDS).captions[0].text == BIRDS[0]


def test_concurrent_requests_for_a_task_share_one_encoding(
    search_engine: SearchEngine, encoding: _SlowEncoding, pool: ThreadPoolExecutor
) -> None:
    videos = ["birds-0", "birds-1", "birds-2"] * 2
    pending = [pool.submit(search_engine.caption_video, video) for video in videos]
    assert encoding.started.wait(TIMEOUT_SECONDS)
    encoding.release.set()
    responses: list[Any] = [result.result(TIMEOUT_SECONDS) for result in pending]
    assert [response.captions[0].video_id for response in responses] == videos
    assert encoding.tasks == ["tsk_birds"]


def test_failed_encoding_is_repeated_by_the_next_request(
    search_engine: SearchEngine, encoding: _SlowEncoding
) -> None:
    encoding.release.set()
    encoding.is_broken = True
    with pytest.raises(Unavailable, match="broken"):
        search_engine.caption_video("birds-0")
    encoding.is_broken = False
    assert search_engine.caption_video("birds-0").captions
    assert encoding.tasks == ["tsk_birds"] * 2
