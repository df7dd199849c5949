"""Evidence of passages of transcripts."""

from __future__ import annotations

import numpy as np
import pytest

from models.routing.transcript_evidence import passage_evidence, with_transcripts
from models.routing.word_evidence import (
    CaptionStatistics,
    MatchedDocuments,
    WordEvidence,
    word_evidence,
)


def _nats(strengths: list[float], frequencies: list[int], passages: int = 60_000) -> float:
    nats, _ = passage_evidence(np.array([strengths]), np.array(frequencies), passages)
    return float(nats[0])


def _caption(units: int) -> float:
    """Evidence of a caption that has all of some rare words."""
    matches = MatchedDocuments(
        np.array([1]),
        np.array([0]),
        np.array([True]),
        np.array([True]),
        np.array([units]),
        np.ones((1, units), np.float32),
        np.zeros(units, np.bool_),
        np.ones(units, np.int64),
        100_000,
    )
    statistics = CaptionStatistics(np.array([100_000.0]), np.array([8.0]), np.array([6.0]))
    return float(word_evidence(matches, statistics).nats[0])


@pytest.mark.parametrize("units", [1, 2, 5, 20])
def test_passage_with_all_words_speaks_for_its_video_less_than_a_caption(units: int) -> None:
    assert 6 < _nats([1.0] * units, [1] * units) < _caption(units)


def test_evidence_falls_with_frequency_other_forms_and_missing_words() -> None:
    rare = _nats([1, 1], [10, 10])
    assert rare > _nats([1, 1], [20_000, 20_000]) > 0
    assert rare > _nats([1, 0.9], [10, 10]) > 0
    assert _nats([1, 0], [10, 10]) == 0
    assert 0 < _nats([1] * 9 + [0], [10] * 10) < _nats([1] * 10, [10] * 10)


def test_few_passages_do_not_make_a_word_common() -> None:
    assert _nats([1], [1], 1) > 6


def test_empty_matches_have_no_evidence() -> None:
    nats, says_it = passage_evidence(np.zeros((0, 2)), np.array([0, 0]), 10)
    assert (len(nats), len(says_it)) == (0, 0)


def test_transcripts_raise_evidence_and_never_lower_it() -> None:
    evidence = WordEvidence(
        np.array([2, 5]),
        np.array([0, 1]),
        np.array([30, -4], np.float32),
        np.array([True, False]),
        np.array([True, False]),
        np.array([-1, -2], np.float32),
    )
    joined = with_transcripts(
        evidence,
        np.array([2, 5, 7]),
        np.array([0, 1, 1]),
        np.array([15, 10, 5], np.float32),
        np.array([True, True, False]),
    )
    assert joined.videos.tolist() == [2, 5, 7]
    assert joined.domains.tolist() == [0, 1, 1]
    assert joined.nats.tolist() == [30, 10, 5]
    assert joined.is_complete.tolist() == [True, True, False]
    assert joined.is_typed.tolist() == [True, False, False]
