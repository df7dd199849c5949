"""Searches by words that are said in videos: the answer names the part of the video."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import select

from cinestrata_schemas.choice_types import TextSource
from cinestrata_schemas.search import SearchQuery, SearchResult
from cinestrata_schemas.videos import Cue, VideoPatch
from service.catalog.database import session_scope
from service.catalog.domain_videos import count_edit
from service.catalog.tables import Video
from service.catalog.video_texts import store_texts
from service.library.video_changes import edit_video
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, Library, Served

TALK = [
    (0.0, 4.0, "Anna: welcome to the lecture"),
    (4.0, 8.0, "today we derive the gradient"),
    (8.0, 12.0, "of the loss <script>alert(1)</script>"),
    (29.0, 33.0, "and follow the steepest"),
    (33.0, 36.0, "descent into the valley"),
    (600.0, 604.0, "questions about momentum"),
    (4000.0, 4004.0, "subscribe to the newsletter"),
]


def _cues(texts: Sequence[tuple[float, float, str]]) -> list[Cue]:
    return [Cue(start=start, end=end, text=text) for start, end, text in texts]


def learn(library: Library) -> None:
    for name, captions in (("birds", BIRDS), ("cars", CARS)):
        library.add_task(name, captions)
    facts = [{"captions": [], "duration": 3600.0}, {"captions": ["a person at a desk"]}, {"captions": []}]
    library.add_task("talks", ["a lecture", "a person at a desk", "a stage"], facts=facts)


@pytest.fixture
def served(shared: Served) -> SearchEngine:
    edit_video("talks-0", VideoPatch(transcript=_cues(TALK)))
    edit_video("talks-1", VideoPatch(transcript=None))
    return shared[1]


def _first(service: SearchEngine, q: str) -> SearchResult:
    return service.search(q, k=9).results[0]


def _nats(service: SearchEngine, video: str, q: str) -> float:
    return service.explain(video, SearchQuery(q=q)).words_term


def _spans(service: SearchEngine, q: str) -> list[tuple[float | None, float | None, str]]:
    result = next(each for each in service.search(q, k=9).results if each.video_id == "talks-0")
    return [(text.start, text.end, text.text) for text in result.words if text.kind == "transcript"]


def test_answer_names_the_part_that_says_the_words(served: SearchEngine) -> None:
    first = _first(served, "derive gradients loss")
    assert first.video_id == "talks-0"
    assert first.matches
    assert first.stream_url == "/videos/talks-0/stream#t=4.00,12.00"
    (text,) = first.words
    assert (text.kind, text.start, text.end) == ("transcript", 4, 12)
    assert [text.text[start:end] for start, end in text.marks] == ["derive", "gradient", "loss"]
    assert text.text == "today we derive the gradient of the loss <script>alert(1)</script>"
    assert served.search("momentum").results[0].stream_url.endswith("#t=600.00,604.00")
    explained = served.explain("talks-0", SearchQuery(q="momentum"))
    assert [text.start for text in explained.texts] == [600]
    assert explained.words_term > 0
    words = served.explain("talks-0", SearchQuery(q="MOMENTUM, gradients desk zzz")).words
    assert [word.in_texts for word in words] == [True, True, False, False]


@pytest.mark.parametrize("source", ["speech", "screen"])
def test_answer_says_that_the_words_were_heard_or_read(served: SearchEngine, source: TextSource) -> None:
    with session_scope(write=True) as session:
        video = session.scalars(select(Video).where(Video.id == "talks-2")).one()
        cues = [(3.0, 5.0, "platform 3b"), (70.0, 72.0, "gradient")]
        store_texts(session, {video.vector_id: {"speech": [], "screen": [], source: cues}})
        count_edit(session, video.task_id, [video.vector_id], captions=False, metadata=False)
    first = _first(served, "platform 3b")
    assert first.video_id == "talks-2"
    assert first.stream_url == "/videos/talks-2/stream#t=3.00,5.00"
    assert [(text.kind, text.start, text.text) for text in first.words] == [(source, 3, "platform 3b")]
    # Both say the word; what was given counts more.
    assert _nats(served, "talks-0", "gradient") > _nats(served, "talks-2", "gradient") > 0


def test_sentence_is_found_across_the_end_of_a_passage(served: SearchEngine) -> None:
    assert _spans(served, '"steepest descent"')[0][:2] == (29, 36)


def test_part_is_the_shortest_with_all_words(served: SearchEngine) -> None:
    chatter = [(n * 2.0, n * 2.0 + 2, f"step {n} of the stairs") for n in range(10)]
    edit_video("talks-0", VideoPatch(transcript=_cues(chatter)))
    assert _spans(served, "stairs step 7") == [(14, 16, "step 7 of the stairs")]
    assert _spans(served, '"stairs step" 7')[0][:2] in ((12, 16), (14, 18))


def test_words_of_distant_parts_do_not_count_together(served: SearchEngine) -> None:
    answer = served.search("gradient momentum", k=9)
    assert not answer.matching
    assert _spans(served, "gradient momentum") == [(600, 604, "questions about momentum")]


@pytest.mark.parametrize("query", ["about momentum", "momentum giraffe"])
def test_part_with_some_of_the_words_is_found(served: SearchEngine, query: str) -> None:
    assert _first(served, query).video_id == "talks-0"
    assert _spans(served, query) == [(600, 604, "questions about momentum")]


def test_video_does_not_play_from_a_part_that_says_less_than_its_caption(served: SearchEngine) -> None:
    edit_video(
        "cars-0", VideoPatch(transcript=_cues([(0.0, 1.0, "the engine"), (100.0, 103.0, "a taxi to town")]))
    )
    first = _first(served, "red taxi turns")
    assert first.video_id == "cars-0"
    assert [text.kind for text in first.words] == ["caption"]


def test_part_behind_the_end_of_the_file_is_shown_and_not_played(served: SearchEngine) -> None:
    first = _first(served, "newsletter")
    assert (first.video_id, first.words[0].start) == ("talks-0", 4000)
    assert first.stream_url == "/videos/talks-0/stream"


def test_caption_with_the_words_comes_before_a_transcript(served: SearchEngine) -> None:
    said = [(0.0, 3.0, "a red taxi turns left"), (100.0, 103.0, "taxi taxi taxi")]
    for video in ("talks-0", "talks-1"):
        edit_video(video, VideoPatch(transcript=_cues(said)))
    video_ids = [result.video_id for result in served.search("red taxi", k=9).results]
    # Captions without the words do not lower the evidence of a transcript with them.
    assert video_ids[0] == "cars-0"
    assert set(video_ids[1:3]) == {"talks-0", "talks-1"}


def test_missing_words_do_not_count_against_a_video(served: SearchEngine) -> None:
    with_transcript = _nats(served, "talks-0", "a heron on a branch")
    edit_video("talks-0", VideoPatch(transcript=None))
    assert _nats(served, "talks-0", "a heron on a branch") == with_transcript
    assert _nats(served, "talks-1", "a heron on a branch") < with_transcript


def test_long_transcript_changes_no_evidence_of_captions(served: SearchEngine) -> None:
    """Words that are said all the time stay rare in captions, and tell little where they are said."""

    def scores() -> dict[str, float]:
        results = served.search("a red taxi", k=9).results
        return {result.video_id: result.score for result in results if result.video_id != "talks-0"}

    before = scores()
    chatter = [(n * 4.0, n * 4.0 + 3, f"the red taxi number {n}") for n in range(1800)]
    edit_video("talks-0", VideoPatch(transcript=_cues(chatter)))
    assert scores() == before
    often, once = (_nats(served, "talks-0", q) for q in ("red taxi", "number 1234"))
    assert often < 0.6 * once
    assert _first(served, "red taxi").video_id == "cars-0"


def test_next_search_of_each_process_has_the_new_transcript(served: SearchEngine) -> None:
    other = SearchEngine(served.settings)
    assert other.snapshots.refresh()
    assert _spans(served, "momentum") == _spans(other, "momentum") != []
    edit_video("talks-0", VideoPatch(transcript=_cues([(1.0, 2.0, "an interlude")])))
    for process in (served, other):
        assert _spans(process, "momentum") == []
        assert _spans(process, "interlude") == [(1, 2, "an interlude")]
    other.close()


def test_word_of_a_transcript_is_not_corrected(served: SearchEngine) -> None:
    edit_video("talks-0", VideoPatch(transcript=_cues([(1.0, 2.0, "the herron of the gods")])))
    assert served.search("herron").corrected is None
