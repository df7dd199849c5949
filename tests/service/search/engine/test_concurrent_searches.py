"""Batches of concurrent searches."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import pytest

from cinestrata_schemas.search import SearchQuery
from service.core.errors import InvalidInput
from service.search import engine as engine_module
from service.search.engine import SearchEngine
from service.search.snapshots.search_snapshot import SearchSnapshot
from tests.service.search.caption_library import Library


@pytest.fixture
def one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines of a test run one batch at a time."""
    monkeypatch.setattr(engine_module, "LANES", 1)


def test_queued_queries_share_a_batch_and_a_failing_one_does_not_affect_the_others(
    shared: tuple[Library, SearchEngine], monkeypatch: pytest.MonkeyPatch, one_lane: None
) -> None:
    library, service = shared
    expected = {text: service.search(text).results for text in ("a red bird", "a taxi", "a blue car")}
    search_engine = SearchEngine(library.settings)
    search_engine.snapshots.refresh()
    started, release, batches = Event(), Event(), []

    def execute_slowly(snapshot: SearchSnapshot, searches: Any, *rest: Any, **options: Any) -> Any:
        batches.append([search.text for search in searches])
        started.set()
        assert release.wait(10)
        return execute(snapshot, searches, *rest, **options)

    async def search() -> None:
        pending = [asyncio.create_task(search_engine.search_async(SearchQuery(q="a red bird")))]
        assert await asyncio.to_thread(started.wait, 10)
        pending.append(asyncio.create_task(search_engine.search_async(SearchQuery(q="a taxi"))))
        wrong = asyncio.create_task(search_engine.search_async(SearchQuery(q="a boat", mode="unknown")))
        pending.append(asyncio.create_task(search_engine.search_async(SearchQuery(q="a blue car"))))
        while search_engine.scheduler.queue_length < 3:
            await asyncio.sleep(0)
        release.set()
        responses = await asyncio.wait_for(asyncio.gather(*pending), 10)
        assert [response.results for response in responses] == list(expected.values())
        with pytest.raises(InvalidInput, match="unknown"):
            await wrong

    execute = engine_module.execute
    monkeypatch.setattr(engine_module, "execute", execute_slowly)
    asyncio.run(search())
    shared_batch = sorted(batches[1])
    assert (batches[0], shared_batch) == (["a red bird"], ["a blue car", "a boat", "a taxi"])
    assert sorted(text for batch in batches[2:] for text in batch) == shared_batch, (
        "after an error, each query is started alone"
    )
