"""Fixtures for the tests of searches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from models.backbones.backbone import Backbone
from service.search.engine import SearchEngine
from service.search.library_words import LibraryTexts, LibraryWords
from tests.service.search.caption_library import Library, Served, learn_birds_and_cars, settled

# Tensors are small: a second thread costs more than it saves, in particular on a busy machine.
torch.set_num_threads(1)


@pytest.fixture
def no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of a video contains a word: searches rank by what videos look like."""
    without_words = property(
        lambda words: LibraryTexts(columns=vars(words)["texts"].columns),
        lambda words, texts: vars(words).update(texts=texts),
    )
    monkeypatch.setattr(LibraryWords, "texts", without_words, raising=False)


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, backbone: Backbone
) -> Iterator[Served]:
    """A library and its engine, shared by the tests of a module, whose function ``learn`` adds the domains."""
    with settled(tmp_path_factory.mktemp("shared"), backbone) as configured:
        library = Library(configured, backbone, "zero_shot")
        getattr(request.module, "learn", learn_birds_and_cars)(library)
        service = SearchEngine(configured)
        assert service.snapshots.refresh()
        yield library, service
