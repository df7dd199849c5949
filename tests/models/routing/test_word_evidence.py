"""Evidence of words: what speaks for a video, what against it, and what says nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.routing.word_evidence import (
    CaptionStatistics,
    MatchedDocuments,
    WordEvidence,
    add_written_evidence,
    inverse_document_frequency,
    word_evidence,
    written_routing,
)

CAPTIONS, LENGTH, WORD_MASS = 100.0, 4.0, 3.0


def _evidence(
    texts: Sequence[tuple[int, bool, int, Sequence[float]]],
    frequencies: Sequence[int],
    *,
    domains: int = 1,
    captioned: bool | Sequence[bool] = True,
    votes: Sequence[int] | None = None,
    partial: Sequence[bool] | None = None,
) -> WordEvidence:
    """Compute the evidence of texts (video, whether it is a caption, length, strengths of units); videos 100 n… are in
    domain n.
    """
    videos = np.array([text[0] for text in texts], np.int64)
    return word_evidence(
        MatchedDocuments(
            videos,
            videos // 100,
            np.array([text[1] for text in texts], np.bool_),
            np.broadcast_to(np.array(captioned), len(texts)),
            np.array([text[2] for text in texts], np.int64),
            np.array([text[3] for text in texts], np.float32).reshape(len(texts), len(frequencies)),
            np.array(votes or [0] * len(texts), np.int64),
            np.array(partial or [False] * len(frequencies)),
            np.array(frequencies, np.int64),
            int(CAPTIONS) * domains,
        ),
        CaptionStatistics(np.full(domains, CAPTIONS), np.full(domains, LENGTH), np.full(domains, WORD_MASS)),
    )


def test_no_matched_text_says_nothing() -> None:
    found = _evidence([], [0, 0])
    assert len(found.videos) == 0
    assert found.absent.tolist() == [0.0]


def test_caption_with_the_whole_query_is_complete_and_others_speak_against_their_videos() -> None:
    found = _evidence([(7, True, 4, [1, 1]), (9, True, 4, [1, 0])], [2, 1])
    whole, half = found.nats.tolist()
    assert found.videos.tolist() == [7, 9]
    assert found.is_complete.tolist() == [True, False]
    assert whole > 20 > 0 > half >= -8
    assert found.absent[0] <= half


def test_another_form_of_a_word_is_complete_and_comes_after_the_word_itself() -> None:
    found = _evidence([(1, True, 1, [1]), (2, True, 1, [0.9])], [2])
    assert found.is_complete.all()
    assert found.is_typed.tolist() == [True, False]
    assert found.nats[0] > found.nats[1] + 10 > 10


def test_words_of_several_texts_complete_a_video() -> None:
    found = _evidence([(3, True, 4, [1, 0]), (3, False, 2, [0, 1]), (4, True, 4, [1, 0])], [3, 1])
    assert found.is_complete.tolist() == [True, False]


def test_best_text_of_a_video_counts() -> None:
    good, poor = (True, 1, [1, 0]), (True, 9, [1, 0])
    best, worst = _evidence([(1, *good), (2, *poor)], [9, 9]).nats.tolist()
    assert best > worst
    for texts in ([good, poor], [poor, good]):
        assert _evidence([(1, *text) for text in texts], [9, 9]).nats.tolist() == [best]


def test_missing_word_says_less_the_longer_the_query_is() -> None:
    one = float(_evidence([(1, True, 4, [1])], [1]).absent[0])
    long = float(_evidence([(1, True, 4, [1] + [0] * 39)], [1] * 40).absent[0])
    assert one == pytest.approx(-8)
    assert one < long < 0


def test_caption_of_common_words_that_the_query_contains_says_nothing_against_its_video() -> None:
    """Two words that a fifth of the captions have, in a query of three."""
    found = _evidence([(1, True, 2, [1, 1, 0]), (2, True, 3, [1, 1, 0])], [20, 20, 1])
    assert found.nats[0] > 0 > found.nats[1], "the second caption has another word than the query"


def test_caption_of_a_template_with_another_word_speaks_against_its_video() -> None:
    """All of twenty captions share nine of ten words, so the tenth has nearly all of their mass."""
    videos = np.arange(20)
    strengths = np.ones((20, 10), np.float32)
    strengths[1:, 9] = 0
    found = word_evidence(
        MatchedDocuments(
            videos,
            np.zeros(20, np.int64),
            np.ones(20, np.bool_),
            np.ones(20, np.bool_),
            np.full(20, 10),
            strengths,
            np.zeros(20, np.int64),
            np.zeros(10, np.bool_),
            np.array([20] * 9 + [1]),
            20,
        ),
        CaptionStatistics(np.array([20.0]), np.array([10.0]), np.array([0.27])),
    )
    assert found.is_complete.tolist() == [True] + [False] * 19
    assert (found.nats[1:] < -6).all()


def test_name_speaks_for_a_video_without_captions_and_never_against_it() -> None:
    found = _evidence([(1, False, 3, [1, 0, 0]), (2, False, 1, [1, 1, 1])], [2, 1, 1], captioned=False)
    assert found.nats[0] == 0
    assert found.nats[1] > 20


def test_common_word_weighs_by_its_share_of_the_texts_if_no_caption_is_listed() -> None:
    found = _evidence([(1, False, 1, [0, 1])], [1, 25], domains=3, partial=[False, True])
    of_a_domain = inverse_document_frequency(np.array([100 * 25 / 300]), 100.0)
    assert found.nats.tolist() == pytest.approx((0.5 * of_a_domain).tolist())


def test_word_of_every_caption_does_not_distinguish_the_videos_of_its_domain() -> None:
    everywhere = [(video, True, 4, [1.0, 0.0]) for video in range(100)]
    found = _evidence([*everywhere, (5, True, 4, [0.0, 1.0])], [100, 1], domains=1)
    own = found.nats[found.videos == 5]
    others = found.nats[found.videos != 5]
    assert own > 0
    assert np.ptp(others) == 0


def test_domain_without_captions_has_no_evidence_against_its_videos() -> None:
    found = word_evidence(
        MatchedDocuments(
            np.array([1], np.int64),
            np.array([0]),
            np.array([True]),
            np.array([True]),
            np.array([4]),
            np.ones((1, 1), np.float32),
            np.array([0]),
            np.array([False]),
            np.array([1]),
            10,
        ),
        CaptionStatistics(np.array([10.0, 0.0]), np.array([4.0, 0.0]), np.array([3.0, 0.0])),
    )
    assert found.absent[1] == 0
    assert found.absent[0] < 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 299),
            st.booleans(),
            st.integers(1, 2000),
            st.lists(st.sampled_from([0.0, 0.9, 1.0]), min_size=3, max_size=3),
        ),
        max_size=40,
    ),
    st.lists(st.integers(0, 300), min_size=3, max_size=3),
)
def test_evidence_is_bounded_and_of_each_video_once(
    texts: list[tuple[int, bool, int, list[float]]], frequencies: list[int]
) -> None:
    found = _evidence(texts, frequencies, domains=3)
    assert found.videos.tolist() == sorted({text[0] for text in texts})
    assert (found.domains == found.videos // 100).all()
    assert ((found.nats >= -8) & (found.nats <= 40)).all()
    assert ((found.absent >= -8) & (found.absent <= 0)).all()
    assert (found.is_complete | ~found.is_typed).all()


def test_many_texts_have_the_evidence_that_each_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    strengths = rng.choice(np.array([0, 0.9, 1], np.float32), 2000)
    videos = rng.integers(0, 200, 2000)  # several texts of most, in any order
    texts = [
        (int(video), bool(rng.random() < 0.5), int(rng.integers(1, 6)), [float(strength)])
        for video, strength in zip(videos, strengths, strict=True)
    ]
    votes = (rng.random(2000) < 0.1).astype(int)
    captioned = (videos % 3 > 0).tolist()
    for chosen in (range(2000), np.unique(videos, return_index=True)[1]):  # all texts, and one of each video
        own = [texts[place] for place in chosen]
        facts = {"votes": votes[chosen].tolist(), "captioned": [captioned[place] for place in chosen]}
        monkeypatch.setattr("models.routing.word_evidence._TABLE_SHARE", 8)
        together = _evidence(own, [1200], domains=2, **facts)
        monkeypatch.setattr("models.routing.word_evidence._TABLE_SHARE", 0)
        alone = _evidence(own, [1200], domains=2, **facts)
        for name in ("videos", "domains", "nats", "is_complete", "is_typed", "absent"):
            np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))


def test_written_text_routes_to_the_domain_that_has_it_however_far_its_meaning_is() -> None:
    meaning = np.array([0.0, -60.0, -3.0])
    written = written_routing(np.array([0, 2, 0]), np.array([80, 80, 80]))
    routed = add_written_evidence(meaning, written)
    assert routed.argmax() == 1
    # Between domains that have the text equally often, the meaning decides.
    equal = add_written_evidence(meaning, written_routing(np.array([2, 2, 2]), np.array([80, 80, 80])))
    assert equal.argmax() == 0


def test_inverse_document_frequency_equals_its_formula() -> None:
    found = inverse_document_frequency(np.array([0, 3, 10]), 10)
    assert found == pytest.approx([np.log(1 + 10.5 / 0.5), np.log(1 + 7.5 / 3.5), np.log(1 + 0.5 / 10.5)])


def test_confirmed_text_says_more_with_votes_and_less_than_a_caption() -> None:
    """The evidence of a whole query for one, two … votes; the last text is a caption."""
    votes = [1, 2, 3, 15, 0]
    found = _evidence(
        [(video, not count, 2, [1, 1]) for video, count in enumerate(votes)], [5, 5], votes=votes
    )
    assert (np.diff(found.nats) > 0).all()
    assert found.is_complete.all()
    named = _evidence([(1, False, 2, [1, 1])], [5, 5])
    assert found.nats[0] < named.nats[0], "one person says less than a name"


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=12, unique_by=lambda pair: pair[0])
)
def test_refusals_lower_their_videos_alone_and_are_bounded(refused: Sequence[tuple[int, int]]) -> None:
    found = _evidence([(video, True, 4, [1, video % 2]) for video in range(0, 20, 2)], [10, 5])
    refused = sorted(refused)
    videos = np.array([video for video, _ in refused], np.int64)
    votes = np.array([count for _, count in refused], np.int64)
    lowered = found.with_refused(videos, videos // 100, votes, np.full(len(videos), -1.0))
    assert lowered.videos.tolist() == sorted({*found.videos.tolist(), *videos.tolist()})
    before = dict(zip(found.videos.tolist(), found.nats.tolist(), strict=True))
    against = dict(refused)
    for video, nats in zip(lowered.videos.tolist(), lowered.nats.tolist(), strict=True):
        change = before.get(video, -1.0) - nats
        assert change == pytest.approx(12 * (1 - 0.5 ** against.get(video, 0)), abs=1e-4)
    assert set(lowered.videos[lowered.is_complete]) == set(found.videos[found.is_complete])
