"""Evidence of transcript passages."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.words.word_evidence import (
    CaptionStatistics,
    WordEvidence,
    passage_evidence,
    required_units,
    word_evidence,
)
from index.words.word_index import TextKind, WordMatches

GIVEN = np.array([TextKind.TRANSCRIPT])


def _log_odds(
    strengths: list[float],
    frequencies: list[int],
    passages: int = 60_000,
    kind: TextKind = TextKind.TRANSCRIPT,
) -> float:
    log_odds, _ = passage_evidence(np.array([strengths]), np.array([kind]), np.array(frequencies), passages)
    return float(log_odds[0])


def _caption(units: int) -> float:
    """Compute the evidence of a caption that has all of some rare words."""
    matches = WordMatches(
        videos=np.array([1]),
        kinds=np.array([TextKind.CAPTION], np.uint8),
        votes=np.array([0], np.int16),
        lengths=np.array([units], np.int32),
        strengths=np.ones((1, units), np.float32),
        frequencies=np.ones(units, np.int64),
        documents=100_000,
    )
    evidence = word_evidence(
        matches,
        CaptionStatistics(100_000, np.array([8.0]), np.array([100_000.0]), np.zeros(1)),
        domains=np.array([0]),
        is_captioned=np.array([True]),
        is_partial=np.zeros(units, np.bool_),
        caption_frequencies=np.ones(units, np.int64),
    )
    return float(evidence.log_odds[0])


@pytest.mark.parametrize("units", [1, 2, 5, 20])
def test_passage_with_all_words_speaks_for_its_video_less_than_a_caption(units: int) -> None:
    assert 6 < _log_odds([1.0] * units, [1] * units) < _caption(units)


def test_what_a_model_heard_or_read_speaks_for_its_video_less_than_what_was_given() -> None:
    given, heard, read = (
        _log_odds([1, 1], [10, 10], kind=kind)
        for kind in (TextKind.TRANSCRIPT, TextKind.SPEECH, TextKind.SCREEN)
    )
    assert 6 < heard == read < given


def test_evidence_falls_with_frequency_other_forms_and_missing_words() -> None:
    rare = _log_odds([1, 1], [10, 10])
    assert rare > _log_odds([1, 1], [20_000, 20_000]) > 0
    assert rare > _log_odds([1, 0.9], [10, 10]) > 0
    assert _log_odds([1, 0], [10, 10]) == 0
    assert 0 < _log_odds([1] * 9 + [0], [10] * 10) < _log_odds([1] * 10, [10] * 10)


@pytest.mark.parametrize(
    ("strengths", "frequencies", "passages"),
    [
        ([1, 1], [10, 300], 60_000),
        ([1, 0.9], [10, 300], 60_000),
        ([1], [10_000], 60_000),
        ([1], [50_000], 60_000),
        ([1], [1], 1),
        ([1] * 9 + [0], [10] * 10, 60_000),
        ([1] * 20, [1] * 20, 60_000),
    ],
)
def test_evidence_follows_the_formula(strengths: list[float], frequencies: list[int], passages: int) -> None:
    masses = [
        math.log1p((passages + 1000 - frequency + 0.5) / (frequency + 0.5)) for frequency in frequencies
    ]
    mass = sum(masses)
    shared = sum(m for m, strength in zip(masses, strengths, strict=True) if strength)
    form = 0.6 if 0.9 in strengths else 1.0
    completeness = max(0.0, (shared / mass - 0.8) / 0.2)
    expected = 0.6 * completeness * min(0.5 * shared + 25 * form * min(1, mass / 6), 40)
    log_odds, says_it = passage_evidence(np.array([strengths]), GIVEN, np.array(frequencies), passages)
    assert log_odds[0] == pytest.approx(expected, rel=1e-5)
    assert says_it[0] == (all(strengths) and expected >= 6)


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1, max_size=8))
def test_passages_without_required_units_have_no_evidence(units: list[tuple[int, bool]]) -> None:
    frequencies = np.array([frequency for frequency, _ in units])
    strengths = np.array([[float(has) for _, has in units]])
    required = required_units(frequencies, 300)
    strengths[0, required] = 0
    assert passage_evidence(strengths, GIVEN, frequencies, 300)[0].tolist() == [0]


def test_words_that_are_said_all_the_time_select_no_passages() -> None:
    assert required_units(np.array([40_000, 50_000]), 60_000) == []
    assert required_units(np.array([40_000, 50_000, 3]), 60_000) == [2]


def test_few_passages_do_not_make_a_word_common_and_no_passages_have_no_evidence() -> None:
    assert _log_odds([1], [1], 1) > 6
    assert list(map(len, passage_evidence(np.zeros((0, 2)), GIVEN[:0], np.array([0, 0]), 10))) == [0, 0]


def test_transcripts_raise_evidence_and_never_lower_it() -> None:
    evidence = WordEvidence(
        np.array([2, 5]),
        np.array([0, 1]),
        np.array([30, -4], np.float32),
        np.array([True, False]),
        np.array([-1, -2], np.float32),
        np.array([0, 0], np.float32),
    )
    joined = evidence.with_transcripts(
        np.array([2, 5, 7]),
        np.array([0, 1, 1]),
        np.array([15, 10, 5], np.float32),
        np.array([True, True, False]),
    )
    assert joined.videos.tolist() == [2, 5, 7]
    assert joined.domains.tolist() == [0, 1, 1]
    assert joined.log_odds.tolist() == [30, 10, 5]
    assert joined.has_all_terms.tolist() == [True, True, False]
