"""Evidence of words and of transcript passages: what speaks for a video, what against it, and what says nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.words.word_evidence import (
    CaptionStatistics,
    WordEvidence,
    inverse_document_frequency,
    passage_evidence,
    required_units,
    word_evidence,
)
from index.words.word_index import TextKind, WordMatches

CAPTIONS = 100

Text = tuple[int, bool, int, Sequence[float]]  # video, whether it is a caption, length, strengths of units


def _evidence(
    texts: Sequence[Text],
    frequencies: Sequence[int],
    *,
    domains: int = 1,
    captioned: bool | Sequence[bool] = True,
    votes: Sequence[int] | None = None,
    partial: Sequence[bool] | None = None,
    captions: Sequence[int] | None = None,
    uncaptioned: int = 1,
    caption_lengths: Sequence[float] | None = None,
) -> WordEvidence:
    """Compute the evidence of texts; videos 100 n… are in domain n.

    Args:
        captions: Number of captions in each domain, which are those of as many videos.
    """
    videos = np.array([text[0] for text in texts], np.int64)
    strengths = np.array([text[3] for text in texts], np.float32).reshape(len(texts), len(frequencies))
    is_caption = np.array([text[1] for text in texts], np.bool_)
    lengths = np.array([9.0] * domains if caption_lengths is None else caption_lengths)
    counts = np.array([CAPTIONS] * domains if captions is None else captions, np.float64)
    return word_evidence(
        WordMatches(
            videos=videos,
            kinds=np.where(is_caption, TextKind.CAPTION, TextKind.NAME).astype(np.uint8),
            votes=np.array(votes or [0] * len(texts), np.int16),
            lengths=np.array([text[2] for text in texts], np.int32),
            strengths=strengths,
            frequencies=np.array(frequencies, np.int64),
            documents=CAPTIONS * domains,
        ),
        CaptionStatistics(int(counts.sum()), lengths, counts, np.full(domains, float(uncaptioned))),
        domains=videos // 100,
        is_captioned=np.broadcast_to(np.array(captioned), len(texts)),
        is_partial=np.array(partial or [False] * len(frequencies)),
        caption_frequencies=np.count_nonzero(strengths[is_caption], axis=0),
    )


def _share(count: int, captions: int = CAPTIONS) -> float:
    return (count + 0.1) / (captions + 1)


def _absent(count: int, captions: int = CAPTIONS) -> float:
    return math.log(1 - 0.9 * (1 - _share(count, captions)))


def _weight(count: int, captions: int = CAPTIONS) -> float:
    """Compute what a unit adds to a text: its frequency is that in other captions."""
    share = _share(max(0, count - 1), captions - 1)
    return math.log(1 + 0.9 * (1 - share) ** 2 / share) - _absent(count, captions)


def test_evidence_is_the_sum_of_its_units() -> None:
    """Compare with the formula: units that 1, 4 and 90 of 100 captions have, and one that none has."""
    rows = [[1, 1, 1, 0], [0, 1, 1, 0], [0, 0.9, 0, 0], *[[0, 0, 1, 0]] * 88, [0, 1, 0, 0]]
    computed = _evidence([(video, True, 6, row) for video, row in enumerate(rows)], [1, 4, 90, 0])
    counts = [1, 4, 90]
    base = sum(map(_absent, counts))
    brevity = 1 / (1 + 0.2 * (6 / 3 - 1))
    expected = [
        base + brevity * sum(x * _weight(count) for x, count in zip(row, counts, strict=False))
        for row in rows
    ]
    assert computed.absent.tolist() == pytest.approx([base], abs=1e-5)
    assert not computed.has_all_terms[1:].any()
    assert computed.log_odds[1:].tolist() == pytest.approx(expected[1:], abs=1e-4)


def test_videos_without_captions_have_the_mean_of_their_domain() -> None:
    matched: list[Text] = [(100, True, 1, [1.0]), (101, True, 2, [0.9])]
    computed = _evidence(matched, [2], domains=3, captions=[100, 10, 0], uncaptioned=4)
    weight, absent = _weight(2, 110), math.exp(_absent(2, 110))
    gains = np.array([weight, 0.9 * weight / 1.2])
    likelihoods = [100 * absent, absent * (np.exp(gains).sum() + 8)]
    means = [(4 + likelihoods[0]) / 104, (4 + likelihoods[1]) / 14, (12 + sum(likelihoods)) / 122]
    assert computed.unknown.tolist() == pytest.approx((1.5 + np.log(means)).tolist(), abs=1e-5)
    assert computed.absent[2] == computed.unknown[2], "no video of the domain has captions"


def test_no_matched_text_says_nothing() -> None:
    computed = _evidence([], [0, 0], domains=2, captions=[10, 0])
    assert len(computed.videos) == 0
    assert computed.absent.tolist() == pytest.approx([0.0, 1.5])
    assert computed.unknown.tolist() == pytest.approx([1.5, 1.5])
    assert _evidence([], [0], captions=[0]).unknown.tolist() == [0]


def test_unit_that_no_text_has_changes_nothing() -> None:
    texts: list[Text] = [(1, True, 3, [1, 0]), (2, True, 5, [0.9, 1])]
    more = [(video, caption, length, [*units, 0]) for video, caption, length, units in texts]
    plain, longer = _evidence(texts, [2, 1]), _evidence(more, [2, 1, 0])
    assert longer.absent.tolist() == plain.absent.tolist()
    assert longer.unknown.tolist() == plain.unknown.tolist()
    assert longer.log_odds[0] == plain.log_odds[0]
    assert plain.has_all_terms.tolist() == [False, True]
    assert not longer.has_all_terms.any()


def test_complete_videos_precede_all_others_and_the_closest_text_is_first() -> None:
    rows: list[Text] = [
        (1, True, 2, [1, 1]),
        (2, True, 8, [1, 1]),
        (3, True, 2, [1, 0.9]),
        (4, True, 2, [1, 0]),
    ]
    computed = _evidence(rows, [4, 3])
    first, second = _weight(4), _weight(3)  # of the captions, all of which are matches
    gained = [
        first + second + 25 + 10,
        (first + second + 10) / 1.6 + 25,
        first + 0.9 * second + 0.3 * 25 + 10,
        first,
    ]
    expected = [_absent(4) + _absent(3) + gain for gain in gained]
    assert computed.log_odds.tolist() == pytest.approx(expected, abs=1e-4)
    assert computed.has_all_terms.tolist() == [True, True, True, False]
    assert (np.diff(computed.log_odds) < -1).all()


def test_words_of_several_texts_complete_a_video() -> None:
    computed = _evidence([(3, True, 4, [1, 0]), (3, False, 2, [0, 1]), (4, True, 4, [1, 0])], [3, 1])
    assert computed.has_all_terms.tolist() == [True, False]


def test_best_text_of_a_video_counts() -> None:
    good, poor = (True, 1, [1, 0]), (True, 9, [1, 0])
    best, worst = _evidence([(1, *good), (2, *poor)], [9, 9]).log_odds.tolist()
    assert best > worst
    for texts in ([good, poor], [poor, good]):
        assert _evidence([(1, *text) for text in texts], [9, 9]).log_odds.tolist() == pytest.approx(
            [best], abs=0.01
        )


def test_short_caption_loses_less_for_each_word_of_a_long_description() -> None:
    short, long = ([1.0] + [0.0] * (units - 1) for units in (9, 36))
    lacking = {}
    for row in (short, long):
        units = len(row)
        texts: list[Text] = [
            (1, True, 3, row),
            *((2 + unit, True, 3, list(np.eye(units)[unit])) for unit in range(1, units)),
        ]
        lacking[units] = float(_evidence(texts, [1] * units).absent[0]) / units
    assert lacking[9] < 3 * lacking[36] < 0


def test_each_domain_has_the_certainty_of_its_captions_lengths() -> None:
    """Shorter captions than the query, which are of two lengths here, lack its words with less evidence."""
    lengths = [9.0, 2.0, 3.0, 4.0, 2.0]
    texts: list[Text] = [(100 * domain, True, 9, [1.0] * 4) for domain in range(len(lengths))]
    evidence = _evidence(texts, [5] * 4, domains=len(lengths), caption_lengths=lengths)
    share = _share(len(texts), CAPTIONS * len(lengths))
    expected = [4 * math.log(1 - 0.9 * min(1, length / 4) * (1 - share)) for length in lengths]
    np.testing.assert_allclose(evidence.absent, expected, rtol=1e-6)
    assert evidence.log_odds[[0, 1, 2]].argsort().tolist() == [1, 2, 0]
    assert evidence.log_odds[[0, 1]].tolist() == evidence.log_odds[[3, 4]].tolist()


def test_phrase_raises_its_videos() -> None:
    computed = _evidence([(1, True, 4, [1, 1]), (2, True, 4, [1, 1])], [2, 2])
    raised = computed.with_phrase(np.array([2, 9]))
    assert (raised.log_odds - computed.log_odds).tolist() == [0, 5]


def test_name_speaks_for_a_video_without_captions_and_never_against_it() -> None:
    texts: list[Text] = [(1, False, 3, [1, 0, 0]), (2, False, 1, [1, 1, 1]), (3, True, 4, [0, 1, 0])]
    computed = _evidence(texts, [2, 2, 1], captioned=[False, False, True])
    assert computed.log_odds[0] >= computed.unknown[0] > computed.absent[0]
    assert computed.log_odds[1] > 20


def test_word_weighs_the_same_in_every_domain() -> None:
    """One caption of the first domain and half of the second one's have the word."""
    texts: list[Text] = [(1, True, 4, [1, 0]), *((100 + video, True, 4, [1, 0]) for video in range(50))]
    computed = _evidence(texts, [51, 0], domains=2)
    assert np.ptp(computed.log_odds) == 0
    assert computed.log_odds[0] == pytest.approx(_absent(51, 200) + _weight(51, 200) / 1.6, abs=1e-5)
    assert computed.unknown[1] > computed.unknown[0]


def test_word_of_every_caption_does_not_distinguish_the_videos_of_its_domain() -> None:
    everywhere: list[Text] = [(video, True, 4, [1.0, 0.0]) for video in range(99)]
    computed = _evidence([*everywhere, (99, True, 4, [0.0, 1.0])], [99, 1], domains=1)
    assert computed.log_odds[-1] > 1
    assert np.ptp(computed.log_odds[:-1]) == 0
    assert abs(computed.log_odds[0] - computed.absent[0]) < 0.1


texts_of_three_domains = st.lists(
    st.tuples(
        st.integers(0, 299),
        st.booleans(),
        st.integers(1, 2000),
        st.lists(st.sampled_from([0.0, 0.9, 1.0]), min_size=3, max_size=3),
    ),
    max_size=40,
)


@given(texts_of_three_domains, st.lists(st.integers(0, 300), min_size=3, max_size=3))
def test_evidence_is_finite_and_of_each_video_once(texts: list[Text], frequencies: list[int]) -> None:
    computed = _evidence(texts, frequencies, domains=3)
    assert computed.videos.tolist() == sorted({text[0] for text in texts})
    assert (computed.domains == computed.videos // 100).all()
    for values in (computed.log_odds, computed.absent, computed.unknown):
        assert np.isfinite(values).all()
    assert (computed.log_odds >= computed.absent[computed.domains] - 1e-4).all()
    assert (computed.unknown > computed.absent).all()


@given(texts_of_three_domains, st.integers(0, 39))
def test_another_unit_in_a_text_never_lowers_its_video(texts: list[Text], chosen: int) -> None:
    """Where the share of captions with the unit stays the same: the text is a name."""
    video, _, length, units = texts[chosen % len(texts)] if texts else (0, False, 1, [0.0] * 3)
    names = [(other[0], False, *other[2:]) for other in texts]
    less = _evidence([*names, (video, False, length, units)], [30] * 3, domains=3)
    more = _evidence([*names, (video, False, length, [1.0, *units[1:]])], [30] * 3, domains=3)
    used_units = {*np.flatnonzero(np.array([other[3] for other in [*names, (0, 0, 0, units)]]).any(axis=0))}
    if 0 in used_units:
        (place,) = np.flatnonzero(less.videos == video)
        assert more.log_odds[place] >= less.log_odds[place] - 1e-4


def test_inverse_document_frequency_equals_its_formula() -> None:
    computed = inverse_document_frequency(np.array([0, 3, 10]), 10)
    assert computed == pytest.approx([np.log(1 + 10.5 / 0.5), np.log(1 + 7.5 / 3.5), np.log(1 + 0.5 / 10.5)])


def test_confirmed_text_says_more_with_votes_and_less_than_a_caption() -> None:
    """The evidence of a whole query for one, two … votes; the last text is a caption."""
    votes = [1, 2, 3, 15, 0]
    computed = _evidence(
        [(video, not count, 2, [1, 1]) for video, count in enumerate(votes)], [5, 5], votes=votes
    )
    assert (np.diff(computed.log_odds) > 0).all()
    assert computed.has_all_terms.all()
    named = _evidence([(1, False, 2, [1, 1])], [5, 5])
    assert computed.log_odds[0] < named.log_odds[0], "one person says less than a name"


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=12, unique_by=lambda pair: pair[0])
)
def test_refusals_lower_their_videos_alone_and_are_bounded(refused: Sequence[tuple[int, int]]) -> None:
    computed = _evidence([(video, True, 4, [1, video % 2]) for video in range(0, 20, 2)], [10, 5])
    refused = sorted(refused)
    videos = np.array([video for video, _ in refused], np.int64)
    votes = np.array([count for _, count in refused], np.int64)
    lowered = computed.with_negative_feedback(videos, videos // 100, votes, np.full(len(videos), -1.0))
    assert lowered.videos.tolist() == sorted({*computed.videos.tolist(), *videos.tolist()})
    before = dict(zip(computed.videos.tolist(), computed.log_odds.tolist(), strict=True))
    against = dict(refused)
    for video, now in zip(lowered.videos.tolist(), lowered.log_odds.tolist(), strict=True):
        change = before.get(video, -1.0) - now
        assert change == pytest.approx(12 * (1 - 0.5 ** against.get(video, 0)), abs=1e-4)
    assert set(lowered.videos[lowered.has_all_terms]) == set(computed.videos[computed.has_all_terms])


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
    falling = [_log_odds([1] * said + [0] * (8 - said), [10] * 8) for said in range(8, 1, -1)]
    assert all(more > less for more, less in pairwise(falling))
    assert falling[-1] == 0


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
    weights = [
        math.log1p((passages + 100 - frequency + 0.5) / (frequency + 0.5)) for frequency in frequencies
    ]
    weight = sum(weights)
    shared = sum(each for each, strength in zip(weights, strengths, strict=True) if strength)
    form = 0.6 if 0.9 in strengths else 1.0
    completeness = max(0.0, (shared / weight - 0.25) / 0.75)
    expected = 0.6 * completeness * min(0.5 * shared + 25 * form * min(1, weight / 6), 40)
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
