"""Relevance feedback of a library, and how it is replaced."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from index.words.word_index import TextKind, VideoText
from service.search.words.library_words import RelevanceFeedback

WORDS = ("dog", "cat", "a dog runs")
judged = st.dictionaries(
    st.integers(1, 6),
    st.dictionaries(st.sampled_from(WORDS), st.integers(-3, 3)),
)


@given(st.lists(judged, max_size=5))
def test_last_texts_of_each_video_count(changes: Sequence[dict[int, dict[str, int]]]) -> None:
    texts, expected = RelevanceFeedback(), dict[int, dict[str, int]]()
    for change in changes:
        before = texts
        texts = texts.replace(
            {
                video: [VideoText(TextKind.CONFIRMED, text, votes=votes) for text, votes in own.items()]
                for video, own in change.items()
            }
        )
        kept = [before.negative_videos([word])[0].tolist() for word in WORDS]
        assert kept == [sorted(v for v, own in expected.items() if own.get(word, 0) < 0) for word in WORDS], (
            "the index before a change stays as it is"
        )
        expected |= change
    for word in WORDS:
        videos, votes = texts.negative_videos([word, f"the {word}s"])
        against = {video: -own[word] for video, own in expected.items() if own.get(word, 0) < 0}
        assert dict(zip(videos.tolist(), votes.tolist(), strict=True)) == against
        assert videos.tolist() == sorted(videos.tolist())
    for video, own in expected.items():
        confirmed = {text.text: text.votes for text in texts.positive_texts(video)}
        assert confirmed == {text: votes for text, votes in own.items() if votes > 0}
