"""Fixtures for the tests of searches."""

from __future__ import annotations

import pytest

from service.search.words.library_words import LibraryTexts, LibraryWords


@pytest.fixture
def no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of a video contains a word: searches rank by what videos look like."""
    monkeypatch.setattr(LibraryWords, "texts", LibraryTexts())
