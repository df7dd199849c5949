"""Requests that the search engine refuses, and query modes that a method does not offer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from models.backbones.backbone import Backbone
from service.core.errors import InvalidInput
from service.core.settings import Settings
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, Library


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
        ("a", {"k": 10**6}, "k", "1000000 results can't be returned"),
        ("a", {"k": 10**5000}, "k", "That many results"),
        ("a", {"task": "boats"}, "task", "Searchable tasks: 'birds', 'cars'"),
        ("a", {"task": ""}, "task", "Searchable tasks: 'birds', 'cars'"),
        ("a", {"mode": "tomorrow"}, "mode", "Use latest or pinned"),
        *(("a", {"moments": moments}, "moments", "Request 0 to 100") for moments in (-1, 101, 10**50)),
        *(
            ("a", {"min_score": score}, "min_score", "not a score")
            for score in (math.nan, math.inf, -math.inf)
        ),
        *(("a", {"min_confidence": p}, "min_confidence", "0 to 1") for p in (-0.1, 1.1, math.nan, math.inf)),
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
    service.snapshots.refresh()
    assert service.search("an owl").mode == "latest"
    with pytest.raises(InvalidInput, match=r"does not offer mode 'pinned'\. Use latest\."):
        service.search("an owl", mode="pinned")


@pytest.mark.parametrize(
    "text", ["🚕 → left", "כדור אדום זז שמאלה", "'; DROP TABLE videos; --", "100 %", "a " * 400]
)
def test_any_unicode_text_is_a_valid_query(shared: tuple[Library, SearchEngine], text: str) -> None:
    _, service = shared
    assert len(service.search(text, k=20).results) == 6
