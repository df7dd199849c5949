"""Texts of a video: captions, values of metadata, and the name of its file."""

from __future__ import annotations

from typing import Any

import pytest

from index.words.word_index import TextKind, VideoText
from service.search.words.library_words import MAX_TEXT_CHARS, MAX_VALUES, texts_of


def _names(uri: str) -> list[str]:
    texts = texts_of(uri, [], {})
    assert {text.kind for text in texts} <= {TextKind.NAME}
    return [text.text for text in texts]


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("clips/barbell_squat.mp4", ["barbell squat"]),
        ("v_ApplyEyeMakeup_g01.avi", ["v ApplyEyeMakeup g01", "v Apply Eye Makeup g01"]),
        ("HTTPServer.mp4", ["HTTPServer", "HTTP Server"]),
        ("ÉcoleÉté.mp4", ["ÉcoleÉté", "École Été"]),
        ("upload://tsk_0123456789abcdef/a b/my.holiday.mov", ["my.holiday"]),
        ("https://host/media/red%20kite.mp4?signature=abc", ["red kite"]),
        ("s3://bucket/2024/猫.mp4", ["猫"]),
        ("what? a #1.mp4", ["what? a #1"]),
        ("http://[::1/x.mp4", []),
        ("https://host", []),
        ("", []),
    ],
)
def test_name_is_that_of_the_file(uri: str, names: list[str]) -> None:
    assert _names(uri) == names


def test_captions_precede_metadata_and_name() -> None:
    metadata: dict[str, Any] = {
        "title": "Bird song",
        "year": 2024,
        "length": 3.0,
        "ratio": 1.5,
        "is_public": True,
        "nothing": None,
        "tags": ["owl", 7, False, {"colour": "red"}],
        "place": {"city": "Köln", "at": {"lake": "Rhein"}},
    }
    field = TextKind.METADATA
    assert texts_of("owl.mp4", ["an owl", " "], metadata) == [
        VideoText(TextKind.CAPTION, "an owl"),
        VideoText(field, "Bird song", "title"),
        VideoText(field, "2024", "year"),
        VideoText(field, "3", "length"),
        VideoText(field, "1.5", "ratio"),
        VideoText(field, "owl", "tags"),
        VideoText(field, "7", "tags"),
        VideoText(field, "red", "tags.colour"),
        VideoText(field, "Köln", "place.city"),
        VideoText(field, "Rhein", "place.at.lake"),
        VideoText(TextKind.NAME, "owl"),
    ]


def test_number_and_length_of_texts_are_limited() -> None:
    deep: Any = "ground"
    for _ in range(5000):
        deep = {"a": deep}
    assert texts_of("", [], deep)[0].text == "ground"
    texts = texts_of("x.mp4", ["c" * 9999], {"numbers": list(range(9999)), "text": "t" * 9999})
    assert len(texts) == 2 + MAX_VALUES
    assert max(len(text.text) for text in texts) == MAX_TEXT_CHARS
