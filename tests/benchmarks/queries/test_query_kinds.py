"""Queries that are drawn from captions, and their right videos."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.queries.library_videos import Library, LibraryVideo
from benchmarks.queries.query_kinds import Query, caption_queries, keyword_queries, library_words
from benchmarks.queries.retyped_captions import RETYPED_KINDS, retyped_queries
from benchmarks.queries.unknown_texts import foreign_words, random_letters


def _video(domain: str, number: int, *captions: str, hidden: bool = False) -> LibraryVideo:
    name = f"{domain}{number}"
    stored = () if hidden else captions
    return LibraryVideo(name, domain, "g", Path(name), name, captions, None, {}, stored, hidden)


@pytest.fixture
def library() -> Library:
    gym = [
        _video("gym", 0, "a goblet squat", "squat with a weight", "hold the weight and bend"),
        _video("gym", 1, "plank", "side plank"),
        _video("gym", 2, "wide squat", hidden=True),
        *(_video("gym", number, f"exercise number{number}") for number in range(3, 16)),
    ]
    return {
        "gym": gym,
        "zoo": [_video("zoo", 0, "a zebra with weight"), _video("zoo", 1, "zebra plank walk")],
    }


def test_keywords_are_found_in_stored_captions_and_right_in_hidden_ones(library: Library) -> None:
    queries = {query.text: query for query in keyword_queries(library, 99, random.Random(0))}
    assert queries["squat"] == Query("words", "squat", frozenset({"gym0", "gym2"}), 1, "gym")
    assert queries["weight"] == Query("words", "weight", frozenset({"gym0", "zoo0"}), 2, None)
    assert queries["goblet squat"].kind == "pairs"
    assert {"wide", "wide squat", "with", "exercise", "weight and"}.isdisjoint(queries), (
        "hidden, a function word, and a word of most videos"
    )
    assert len(keyword_queries(library, 1, random.Random(0))) == 2, "one word and one pair"


def test_caption_queries_of_each_kind(library: Library) -> None:
    kinds = {
        "learned": {"a zebra with weight", "zebra plank walk", "a goblet squat", "plank"},
        "hidden": {"wide squat"},
        "new wording": {"squat with a weight", "side plank"},
        "long description": {"hold the weight and bend"},
    }
    for kind, texts in kinds.items():
        queries = caption_queries(library, [kind], 99, 0)  # type: ignore[list-item]
        assert {query.text for query in queries if not query.text.startswith("exercise")} == texts
        assert all(len(query.right) == 1 and query.kind == kind for query in queries)
    assert len(caption_queries(library, ["learned"], 3, 0)) == 3


def test_foreign_words_resemble_no_word_of_the_library(library: Library) -> None:
    words = foreign_words({*library_words(library), "potato"}, 10_000)
    assert "risotto" in words
    assert "potatoes" not in words
    assert len(random_letters(20)) == 20


def test_retyped_captions_keep_what_makes_a_video_right() -> None:
    library: Library = {
        "gym": [
            _video("gym", 0, "a heavy goblet squat beside bright windows"),
            _video("gym", 1, "The heavy goblet squat beside bright windows."),
            _video("gym", 2, "plank"),
            _video("gym", 3, "a hidden goblet squat beside windows", hidden=True),
        ]
    }
    both = frozenset({"gym0", "gym1"})
    stored = {word for video in library["gym"] for text in video.stored for word in caption_words(text)}
    queries = retyped_queries(library, 9, random.Random(0))
    assert {query.kind for query in queries} == set(RETYPED_KINDS)
    for query in queries:
        words = set(caption_words(query.text))
        foreign = len(words - stored)
        assert query.right <= both
        assert query.right
        assert foreign == {"one unknown word": 1, "unknown words": 2, "typo": 1}.get(query.kind, foreign)
        if query.kind in ("fewer words", "other order", "one unknown word"):
            assert query.right == both
        if query.kind == "filler":
            assert len(query.right) == 1
    assert len(retyped_queries(library, 1, random.Random(0))) == len(RETYPED_KINDS)
