"""Queries that are drawn from captions, and their right videos."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.queries.library_videos import Library, LibraryVideo
from benchmarks.queries.query_kinds import (
    RETYPED_KINDS,
    Query,
    keyword_queries,
    retyped_queries,
    timed_queries,
)


def _video(domain: str, number: int, *captions: str, hidden: bool = False) -> LibraryVideo:
    name = f"{domain}{number}"
    stored = () if hidden else captions
    return LibraryVideo(name, domain, "g", Path(name), name, captions, {}, stored, hidden)


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


def test_heard_and_read_words_are_drawn_from_timed_texts_and_right_in_all_texts(library: Library) -> None:
    assert timed_queries(library, 9, random.Random(0)) == []
    timed = (
        ("speech", "we see the zebra plank walk today"),
        ("screen", "Invoice 4711"),
        ("person", "hidden"),
    )
    library["gym"][1] = replace(library["gym"][1], timed=timed)
    divided = ("speech", "a plank"), ("screen", "Invoice"), ("speech", "walk today")
    library["gym"][2] = replace(library["gym"][2], timed=divided)
    queries = {
        (query.kind, query.text): query.right for query in timed_queries(library, 99, random.Random(0))
    }
    assert queries["heard", "zebra plank walk"] == {"gym1", "zoo1"}
    assert queries["heard", "plank walk today"] == {"gym1", library["gym"][2].id}
    assert queries["read", "invoice 4711"] == {"gym1"}
    assert {text.split()[0] for kind, text in queries if kind == "heard"} == {
        "see",
        "zebra",
        "plank",
        "walk",
        "today",
    }


def test_retyped_captions_keep_what_makes_a_video_right() -> None:
    text = "big heavy goblet squat beside bright open windows today"
    library: Library = {
        "gym": [
            _video("gym", 0, text),
            _video("gym", 1, f"The {text}."),
            _video("gym", 2, " ".join(reversed(text.split()))),
            _video("gym", 3, f"a hidden {text}", hidden=True),
        ],
        "zoo": [_video("zoo", 0, "plank")],
    }
    queries = retyped_queries(library, 9, random.Random(0))
    assert {query.kind for query in queries} == set(RETYPED_KINDS)
    changed = {"one unknown word": 1, "unknown words": 3, "typo": 1, "inflections": 3, "synonyms": 1}
    for query in queries:
        words = caption_words(query.text)
        foreign = len({*words} - {"the", *text.split()})
        assert foreign in (range(4) if query.kind == "filler" else [changed.get(query.kind, 0)]), (
            "fillers are words, too"
        )
        assert query.domain == "gym"
        assert query.right <= {"gym0", "gym1", "gym2"}, "the library does not know the hidden caption"
        if query.kind == "three words":
            rows = {"gym0", "gym1"} if query.text in text else {"gym1"} if "the" in words else {"gym2"}
            assert query.right == rows
        elif "the" not in words and not query.text.lower().startswith("the "):
            assert len(query.right) == 3 or query.kind == "filler"
        if query.kind.startswith("first "):
            assert len(words) == int(query.kind.removeprefix("first "))
    assert len(retyped_queries(library, 1, random.Random(0))) == len(RETYPED_KINDS)
