"""Fixtures for the tests of searches."""

from __future__ import annotations

import pytest

from index.words.word_index import WordIndex
from service.search.words.library_words import LibraryWords


@pytest.fixture
def no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of a video contains a word: searches rank by what videos look like."""
    monkeypatch.setattr(LibraryWords, "index", WordIndex.empty())
