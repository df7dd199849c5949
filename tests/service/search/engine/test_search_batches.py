"""Batches of searches, sent together or at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cinestrata_schemas.search import SearchQuery, SearchResponse
from service.core.errors import InvalidInput, Unavailable
from service.core.settings import Settings
from service.search import engine as engine_module
from service.search.engine import SearchEngine
from service.search.search_request import parse_cursor
from service.search.snapshots.query_vector_cache import QueryVectorCache
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search import executor
from tests.service.search.caption_library import BIRDS, CARS, Library


@pytest.fixture
def service(service: SearchEngine, learning: Library, monkeypatch: pytest.MonkeyPatch) -> SearchEngine:
    monkeypatch.setattr("service.search.engine.MAX_BATCH_QUERIES", 40)
    assert service.snapshots.refresh()
    return service


def _same(one: SearchResponse, other: SearchResponse) -> None:
    def without_times(answer: SearchResponse) -> Any:
        fields = answer.model_dump(
            exclude={"timing_ms": True, "routing": True, "results": {"__all__": {"score"}}}
        )
        cursor = parse_cursor(answer.next_cursor) if answer.next_cursor else None
        if cursor is not None:
            # Its score may differ in rounding, like those of results.
            cursor = cursor.model_copy(update={"last": cursor.last[:2]})
        return fields | {"next_cursor": cursor}

    assert without_times(one) == without_times(other)
    assert [r.score for r in one.results] == pytest.approx([r.score for r in other.results], abs=1e-5)
    assert [(r.task, r.weight) for r in one.routing] == [
        (r.task, pytest.approx(r.weight, abs=1e-6)) for r in other.routing
    ]


def test_batch_equals_single_queries(service: SearchEngine) -> None:
    words = [*BIRDS, *CARS, "a", "a very long " * 12, "an owl in a taxi"]
    queries = [
        SearchQuery(q=text, k=1 + number % 7, task=task, mode=mode)
        for number, text in enumerate(words)
        for task, mode in ((None, None), ("cars", "latest"), (["tsk_cars", "birds"], None))
    ]
    single = [service.search(one.q, one.k, one.task, one.mode) for one in queries]
    fresh = SearchEngine(service.settings)  # with empty caches
    assert fresh.snapshots.refresh()
    for one, other in zip(fresh.search_many(queries), single, strict=True):
        _same(one, other)


def test_batch_encodes_each_text_once_per_task_in_one_forward_pass(
    service: SearchEngine, encoded: list[list[tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In no caption, so that no task is likelier.
    everything = [SearchQuery(q=text) for text in ("7", "8", "7", " 8 ")]
    service.search_many([everything[0], SearchQuery(q="7", task="cars"), *everything[1:]])
    (pairs,) = encoded
    assert [task for task, *_ in pairs] == ["tsk_birds", "tsk_birds", "tsk_cars", "tsk_cars"]
    assert len(set(pairs)) == 4
    service.search_many(everything)
    assert len(encoded) == 1, "the vectors are cached"
    monkeypatch.setattr(executor, "MAX_VECTORS_PER_BATCH", 6)
    service.search_many([SearchQuery(q=str(number)) for number in range(10, 17)])
    assert [len(set(pairs)) for pairs in encoded[1:]] == [6, 6, 2], "the vectors per forward pass are bounded"


def test_concurrent_searches_equal_single_searches(
    service: SearchEngine, encoded: list[list[tuple[str, ...]]]
) -> None:
    """Concurrent texts share forward passes, and each search has its own vector."""
    texts = [
        f"{caption} {word}"
        for caption in (*BIRDS, *CARS)
        for word in ("twice", "slowly", "at night", "alone")
    ]
    expected = {text: service.search(text, 20, routes="all") for text in texts}
    fresh = SearchEngine(service.settings)
    assert fresh.snapshots.refresh()
    encoded.clear()

    async def search_all() -> list[SearchResponse]:
        queries = [SearchQuery(q=text, k=20, routes="all") for text in texts]
        return await asyncio.gather(*(fresh.search_async(query) for query in queries))

    for answer in asyncio.run(search_all()):
        _same(answer, expected[answer.query])
    assert sum(map(len, encoded)) == 2 * len(texts)
    assert len(encoded) < len(texts), "texts share forward passes"


def test_query_vector_cache_is_bounded_in_bytes(
    service: SearchEngine, encoded: list[list[tuple[str, ...]]]
) -> None:
    encoder = service.snapshots.current().distinct_lineages[0].query_cache.encoder
    size = 500 + 4 * service.snapshots.current().shards["tsk_birds"].dim
    cache = QueryVectorCache(encoder, max_bytes=6 * size)  # two vectors of each of three texts
    for number in (*range(9), 0, 7, 8, 6):
        cache([(f"number {n}", "pinned", task) for n in (0, number) for task in ("tsk_birds", "tsk_cars")])
    assert [len(pairs) for pairs in encoded] == [2] * 9 + [2], "the least recently used texts are evicted"


def test_order_of_named_tasks_is_irrelevant(service: SearchEngine) -> None:
    both, all_of_them = (service.search("an owl", 20, task) for task in (["cars", "birds", "tsk_cars"], None))
    assert both.results == all_of_them.results


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        ({"q": " "}, "queries[1].q", "empty"),
        ({"q": "a", "k": 10**6}, "queries[1].k", "1000000 results can't be returned"),
        ({"q": "a", "task": ["birds", "boats"]}, "queries[1].task", "There is no searchable task 'boats'"),
        ({"q": "a", "task": []}, "queries[1].task", "list of tasks is empty"),
        ({"q": "a", "mode": "tomorrow"}, "queries[1].mode", "Use latest or pinned"),
    ],
)
def test_invalid_field_is_reported_with_the_position_of_its_query(
    service: SearchEngine, wrong: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        service.search_many([SearchQuery(q="a"), SearchQuery(**wrong)])
    assert [error.field for error in refused.value.errors] == [field]
    assert message in refused.value.detail


@pytest.mark.parametrize("number", [0, 41, 1000])
def test_batch_of_invalid_size_is_refused(service: SearchEngine, number: int) -> None:
    with pytest.raises(InvalidInput, match="Send 1 to 40") as refused:
        service.search_many([SearchQuery(q="a")] * number)
    assert [error.field for error in refused.value.errors] == ["queries"]


def test_number_of_reported_errors_is_bounded(service: SearchEngine) -> None:
    with pytest.raises(InvalidInput) as refused:
        service.search_many([SearchQuery(q="", k=0)] * 40)
    assert len(refused.value.errors) == 20


def test_batch_is_unavailable_before_a_snapshot_is_loaded(
    tmp_path: Path, settings_factory: Callable[..., Settings]
) -> None:
    with pytest.raises(Unavailable):
        SearchEngine(settings_factory(tmp_path)).search_many([SearchQuery(q="a")])


def test_queued_queries_share_a_batch_and_a_failing_one_does_not_affect_the_others(
    service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LANES", 1)
    expected = {text: service.search(text).results for text in ("a red bird", "a taxi", "a blue car")}
    search_engine = SearchEngine(service.settings)
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
