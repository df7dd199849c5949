"""Requests that the search engine refuses, and query modes that a method does not offer."""

from __future__ import annotations

from typing import Any

import pytest

from models.backbones.backbone import Backbone
from service.core.errors import InvalidInput
from service.core.settings import Settings
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, Library


@pytest.mark.parametrize(
    ("q", "fields", "field", "message"),
    [
        ("", {}, "q", "empty"),
        (" \n\t ", {}, "q", "empty"),
        ("x" * 10_000, {}, "q", "10000 characters. Use at most 1000"),
        ("a\0b", {}, "q", "not text"),
        ("a\ud800b", {}, "q", "not text"),
        ("a", {"k": 0}, "k", "Request 1 to 20"),
        ("a", {"k": -3}, "k", "Request 1 to 20"),
        ("a", {"k": 10**6}, "k", "1000000 results cannot be returned"),
        ("a", {"k": 10**5000}, "k", "That many results"),
        ("a", {"task": "boats"}, "task", "Searchable tasks: 'birds', 'cars'"),
        ("a", {"task": ""}, "task", "Searchable tasks: 'birds', 'cars'"),
        ("a", {"mode": "tomorrow"}, "mode", "Use latest or pinned"),
    ],
)
def test_invalid_field_is_reported_with_a_hint(
    shared: tuple[Library, SearchEngine], q: str, fields: dict[str, Any], field: str, message: str
) -> None:
    _, service = shared
    with pytest.raises(InvalidInput) as refused:
        service.search(q, **fields)
    assert [error.field for error in refused.value.errors] == [field]
    assert message in refused.value.detail


def test_all_invalid_fields_are_reported(shared: tuple[Library, SearchEngine]) -> None:
    _, service = shared
    with pytest.raises(InvalidInput) as refused:
        service.search("", k=0)
    assert [error.field for error in refused.value.errors] == ["q", "k"]


def test_method_without_pinned_queries_answers_in_mode_latest(
    configured: Settings, service: SearchEngine, backbone: Backbone
) -> None:
    library = Library(configured, backbone, "finetune")
    library.add_task("birds", BIRDS)
    service.refresh()
    assert configured.query_mode == "pinned"
    assert service.search("an owl").mode == "latest"
    with pytest.raises(InvalidInput, match=r"does not offer mode 'pinned'\. Use latest\."):
        service.search("an owl", mode="pinned")


def test_default_mode_is_the_best_offered_mode(
    configured: Settings, service: SearchEngine, backbone: Backbone
) -> None:
    library = Library(configured, backbone, "drift_adapter")
    library.add_task("birds", BIRDS)
    library.method.maps = -library.method.maps  # type: ignore[attr-defined]
    library.add_task("cars", CARS)
    service.refresh()

    def scores(task: str, mode: str | None = None) -> dict[str, float]:
        answer = service.search("an owl", k=20, task=task, mode=mode)
        assert answer.mode == (mode or "mapped"), "the method does not pin queries"
        return {result.video_id: result.score for result in answer.results}

    assert scores("birds") == scores("birds", "mapped")
    opposite = {video: -score for video, score in scores("birds", "latest").items()}
    assert scores("birds") == pytest.approx(opposite, abs=1e-6)
    assert scores("cars") == pytest.approx(scores("cars", "latest"), abs=1e-6)
    with pytest.raises(InvalidInput, match=r"does not offer mode 'pinned'\. Use latest or mapped\."):
        service.search("an owl", mode="pinned")


@pytest.mark.parametrize(
    "text", ["🚕 → left", "כדור אדום זז שמאלה", "'; DROP TABLE videos; --", "%", "a " * 400]
)
def test_any_unicode_text_is_a_valid_query(shared: tuple[Library, SearchEngine], text: str) -> None:
    _, service = shared
    assert len(service.search(text, k=20).results) == 6
