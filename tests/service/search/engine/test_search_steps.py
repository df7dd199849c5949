"""Steps of concurrent searches: queued queries share a step, and long searches do not delay short ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from cinestrata_schemas.search import SearchQuery
from service.core.errors import InvalidInput
from service.core.settings import Settings
from service.search import engine as engine_module
from service.search.engine import SearchEngine
from service.search.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search import executor
from service.search.text_search.planner import SEPARATE_ENCODINGS
from tests.service.search.caption_library import BIRDS, SEA, Library


@pytest.fixture
def one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines of a test run one step at a time."""
    monkeypatch.setattr(engine_module, "LANES", 1)


def test_queued_queries_share_a_step_and_a_failing_one_does_not_affect_the_others(
    shared: tuple[Library, SearchEngine], monkeypatch: pytest.MonkeyPatch, one_lane: None
) -> None:
    library, service = shared
    expected = {text: service.search(text).results for text in ("a red bird", "a taxi", "a blue car")}
    search_engine = SearchEngine(library.settings)
    search_engine.snapshots.refresh()
    started, release, batches = Event(), Event(), []

    def execute_slowly(snapshot: SearchSnapshot, searches: Any, *rest: Any, **options: Any) -> Any:
        batches.append([search.text for search in searches if isinstance(search, SearchRequest)])
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


def test_running_search_finishes_on_its_snapshot_and_delays_no_later_search(
    library: Library, configured: Settings, monkeypatch: pytest.MonkeyPatch, one_lane: None
) -> None:
    """A search of all domains, one per round, while a newer release is loaded."""
    monkeypatch.setattr(executor, "SEPARATE_ENCODINGS", replace(SEPARATE_ENCODINGS, max_first_round=1))
    library.add_task("sea", SEA)
    search_engine = SearchEngine(configured)
    assert search_engine.snapshots.refresh()
    all_tasks = SearchQuery(q="a red bird", k=20, routes="all")
    one_task = SearchQuery(q="a taxi", k=20, task="cars")
    before = search_engine.search("a red bird", 20, routes="all")
    started, release, steps, finished = Event(), Event(), list[tuple[str, list[str]]](), list[str]()

    def execute_slowly(snapshot: SearchSnapshot, searches: Any, *rest: Any, **options: Any) -> Any:
        running = execute(snapshot, searches, *rest, rounds=0)  # an invalid search fails here
        if running:
            steps.append((snapshot.release_id, [search.request.text for search in running]))
            started.set()
            assert release.wait(10)
        return execute(snapshot, running, *rest, **options)

    async def search(query: SearchQuery) -> Any:
        response = await search_engine.search_async(query)
        finished.append(query.q)
        return response

    async def main() -> Any:
        first = asyncio.create_task(search(all_tasks))
        assert await asyncio.to_thread(started.wait, 10)
        library.add_task("more", BIRDS)
        assert search_engine.snapshots.refresh()
        later = asyncio.create_task(search(one_task))
        wrong = asyncio.create_task(search(SearchQuery(q="a boat", mode="unknown")))
        while search_engine.scheduler.queue_length < 2:
            await asyncio.sleep(0)
        release.set()
        with pytest.raises(InvalidInput, match="unknown"):
            await wrong
        return await asyncio.wait_for(asyncio.gather(first, later), 10)

    execute = engine_module.execute
    monkeypatch.setattr(engine_module, "execute", execute_slowly)
    first, later = asyncio.run(main())
    after = search_engine.search("a taxi", 20, task="cars")
    assert finished == ["a taxi", "a red bird"], "the later search needs only one step"
    assert before.release != after.release
    for response, expected in ((first, before), (later, after)):
        assert response.model_dump(exclude={"timing_ms"}) == expected.model_dump(exclude={"timing_ms"})
    assert steps[:4] == [
        (before.release, ["a red bird"]),
        (before.release, ["a red bird"]),
        (after.release, ["a taxi"]),
        (before.release, ["a red bird"]),
    ]
