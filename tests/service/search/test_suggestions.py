"""Suggestions complete a query's last word with words from the library."""

from __future__ import annotations

import pytest

from index.words.word_index import TextKind, VideoText, WordIndex
from service.core import request_limits
from service.core.errors import InvalidInput
from service.search.text_search.query_words import MAX_SUGGESTIONS, suggest_words

TEXTS = ["a barbell squat", "barbell bench press", "a barn owl", "sit-up", "Bär"]


@pytest.fixture(scope="module")
def words() -> WordIndex:
    texts = [(number, [VideoText(TextKind.CAPTION, text)]) for number, text in enumerate(TEXTS)]
    return WordIndex.empty().replace(texts)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("two BAR", [("barbell", 2), ("bar", 1), ("barn", 1)]),
        ("bär", [("barbell", 2), ("bar", 1), ("barn", 1)]),
        ("press ow", [("owl", 1)]),
        ("sit-u", [("up", 1)]),
        ("bar ", []),
        ("bar,", []),
        ("", []),
        ("\0\ud800\"'", []),
        ("zebra", []),
    ],
)
def test_last_word_is_continued(words: WordIndex, q: str, expected: list[tuple[str, int]]) -> None:
    suggestions = suggest_words(words, q, 8).suggestions
    assert [(each.text, each.count) for each in suggestions] == expected
    assert suggest_words(words, q, 1).suggestions == suggestions[:1]


def test_invalid_parameters_are_named(words: WordIndex) -> None:
    with pytest.raises(InvalidInput) as caught:
        suggest_words(words, "x" * (request_limits.MAX_QUERY_CHARS + 1), MAX_SUGGESTIONS + 1)
    assert [error.field for error in caught.value.errors] == ["q", "k"]
