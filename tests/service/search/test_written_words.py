"""Words of a query that videos' texts contain, and words that complete a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cinestrata_schemas.search import SearchQuery
from cinestrata_schemas.videos import FeedbackSpec, VideoPatch
from index.words import word_index
from index.words.word_index import TextKind, VideoText, WordIndex
from models.routing.confidence_model import AnswerModel, ConfidenceModel
from service.access.audit_log import Actor, acting_as
from service.core import request_limits
from service.core.errors import InvalidInput
from service.library.video_changes import edit_video, give_feedback, take_back
from service.search import library_words
from service.search.engine import SearchEngine
from service.search.search_request import parse_requests
from service.search.snapshots.search_snapshot import ShardScan
from service.search.text_search import executor, query_words
from service.search.text_search.executor import execute
from service.search.text_search.query_words import MAX_SUGGESTIONS, suggest_words
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, Served

SIGNS = [
    "a person signing the word bird",
    "a person signing the word again",
    "a person signing the word milk",
]
NAMES = [
    {"uri": "lake/Wooden_Rowing-Boat.mp4"},
    {"extra": {"place": "harbour", "crew": ["Zoë", "Jürgen"]}},
    {"uri": "lake/IMG_0003.mp4"},
]


def learn(library: Library) -> None:
    """Add four captioned domains, and one whose videos have names and metadata but no captions."""
    for name, captions in (("birds", BIRDS), ("cars", CARS), ("sea", SEA), ("signs", SIGNS)):
        library.add_task(name, captions)
    library.add_task("lake", ["a lake", "a pond", "a river"], facts=[{**f, "captions": []} for f in NAMES])


@pytest.fixture
def served(shared: Served) -> SearchEngine:
    return shared[1]


def _ids(service: SearchEngine, q: str, **parameters: Any) -> list[str]:
    return [result.video_id for result in service.search(q, **parameters).results]


def test_domain_whose_videos_mostly_have_no_captions_is_named(served: SearchEngine) -> None:
    found = served.find_uncaptioned()
    assert found is not None
    assert (found.task, found.videos, found.uncaptioned) == ("lake", 3, 3)
    for video in ("lake-0", "lake-1"):
        edit_video(video, VideoPatch(captions=["a boat"]))
    served.search("boat")  # includes these edits
    assert served.find_uncaptioned() is None
    for video in ("lake-0", "lake-1"):
        edit_video(video, VideoPatch(captions=[]))


@pytest.mark.parametrize(
    ("q", "first_videos"),
    [
        ("bird", ["signs-0"]),
        ("BIRD!", ["signs-0"]),
        ("herons", ["birds-0"]),
        ("heron water", ["birds-0"]),
        ('"turns left"', ["cars-0"]),
        ("rowing boat", ["lake-0"]),
        ("harbour crew", []),
        ("jurgen", ["lake-1"]),
        ("word", ["signs-0", "signs-1", "signs-2"]),
    ],
)
def test_videos_whose_texts_contain_the_words_come_first_and_match(
    served: SearchEngine, q: str, first_videos: Sequence[str]
) -> None:
    answer = served.search(q, k=15)
    first = [result.video_id for result in answer.results[: len(first_videos)]]
    assert sorted(first) == sorted(first_videos)
    assert [result.video_id for result in answer.results if result.matches] == first
    if first_videos:
        assert (answer.matches, answer.matching) == (True, len(first_videos))
        assert all((result.confidence or 0) > 0.9 for result in answer.results[: len(first_videos)])
        assert answer.routing[0].task == first_videos[0].split("-")[0]


def test_matched_texts_are_shown_with_their_words(served: SearchEngine) -> None:
    (best, *others) = served.search("BIRDS", k=15).results
    (text,) = best.words
    assert (text.kind, text.text, text.field) == ("caption", SIGNS[0], None)
    assert [text.text[start:end] for start, end in text.marks] == ["bird"]
    assert all(result.words == [] for result in others)
    (text,) = served.search("a bird").results[0].words
    marks = [text.text[start:end] for start, end in text.marks]
    assert marks == ["bird"], "the article, which almost all captions have, is not marked"
    (name,) = served.search("rowing boat").results[0].words[:1]
    assert (name.kind, [name.text[start:end] for start, end in name.marks]) == ("name", ["Rowing", "Boat"])
    (value,) = served.search("Jürgen").results[0].words
    assert (value.kind, value.field, value.text) == ("metadata", "crew", "Jürgen")


def test_misspelled_word_is_answered_with_what_it_meant(served: SearchEngine) -> None:
    answer = served.search("herron")
    assert answer.corrected is not None
    assert answer.results[0].video_id == "birds-0"
    assert served.search("heron").corrected is None
    assert served.search("boar").corrected is None, "no text has it, but the vocabulary"
    assert served.search('"herron"').corrected is None
    assert served.search("herron and Herron").corrected == "heron and heron"


def test_unknown_words_say_nothing(served: SearchEngine) -> None:
    answer = served.search("xqzvkw", k=15)
    assert answer.corrected is None
    assert answer.matching in (None, 0)
    assert all(result.words == [] for result in answer.results)


def test_edit_is_found_by_the_next_search(served: SearchEngine) -> None:
    assert "sea-2" not in [r.video_id for r in served.search("narwhal").results if r.matches]
    edit_video("sea-2", VideoPatch(captions=["a narwhal rests"]))
    try:
        assert _ids(served, "narwhal")[0] == "sea-2"
        assert served.search("whale").matching in (None, 0)
    finally:
        edit_video("sea-2", VideoPatch(captions=[SEA[2]]))


@pytest.mark.parametrize("q", ['"a heron', "🦉", "a" * 300, "w " * 500, "鳥の声"])
def test_odd_queries_are_answered(served: SearchEngine, q: str) -> None:
    assert len(served.search(q, k=3).results) == 3


@contextmanager
def _with_feedback(*entries: tuple[str, str, str]) -> Iterator[None]:
    """Feedback (text, video, verdict), each of another caller, that is taken back afterwards."""
    given = []
    for number, (text, video, verdict) in enumerate(entries):
        with acting_as(Actor("user", f"caller {number}")):
            spec = FeedbackSpec.model_validate({"text": text, "video_id": video, "verdict": verdict})
            given.append(give_feedback(spec))
    try:
        yield
    finally:
        for entry in given:
            take_back(entry.id)


def test_confirmed_text_is_found_by_the_next_search_and_shown(served: SearchEngine) -> None:
    before = _ids(served, "narwhal", k=15)
    assert before[0] != "lake-2"
    with _with_feedback(("<b>a narwhal</b>", "lake-2", "right")):
        answer = served.search("narwhals", k=15)
        assert (answer.results[0].video_id, answer.matching) == ("lake-2", 1)
        (text,) = answer.results[0].words
        assert (text.kind, text.text, text.field) == ("confirmed", "<b>a narwhal</b>", None)
        explanation = served.explain("lake-2", SearchQuery(q="narwhal"))
        assert [text.kind for text in explanation.texts] == ["confirmed"]
    assert _ids(served, "narwhal", k=15) == before


def test_feedback_says_less_than_a_caption(served: SearchEngine) -> None:
    with _with_feedback(*[("heron", "birds-2", "right")] * 5):
        assert _ids(served, "heron")[:2] == ["birds-0", "birds-2"]
    with _with_feedback(("a whale jumps", "sea-2", "wrong")):
        assert _ids(served, "a whale jumps")[0] == "sea-2"


def test_refusal_lowers_its_video_for_its_words_alone(served: SearchEngine) -> None:
    def scores(q: str) -> dict[str, float]:
        return {result.video_id: result.score for result in served.search(q, k=15).results}

    queries = ("a big wave", "the big waves", "a wave")
    before = [scores(q) for q in queries]
    refused = next(iter(before[0]))
    with _with_feedback(("a big wave", refused, "wrong"), ("BIG waves", refused, "wrong")):
        after = [scores(q) for q in queries]
    assert [scores(q) for q in queries] == before
    assert after[2] == before[2]
    for earlier, now in zip(before[:2], after[:2], strict=True):
        assert now.pop(refused) < earlier.pop(refused) - 0.3
        assert now == pytest.approx(earlier)


def test_refusal_of_a_misspelled_query_counts(served: SearchEngine) -> None:
    before = served.search("herron").results[0]
    with _with_feedback(("herron", before.video_id, "wrong")):
        results = {result.video_id: result.score for result in served.search("herron", k=15).results}
    assert results[before.video_id] < before.score


FEEDBACK = [
    ("a person signing", "lake-0", "right"),
    ("turns", "birds-1", "wrong"),
    ("turns", "cars-0", "wrong"),
    ("harbour", "sea-1", "right"),
    ("harbour", "lake-1", "wrong"),
    ("rowing", "lake-2", "wrong"),
    ("rowing", "signs-2", "wrong"),
]


@pytest.mark.parametrize("entries", [[], FEEDBACK], ids=["plain", "with feedback"])
@pytest.mark.parametrize("where", [None, {"place": "harbour"}], ids=["all", "filtered"])
@pytest.mark.parametrize(
    "q", ["a bird", "turns", "a person signing", "rowing", "the word milk again", "harbour"]
)
@pytest.mark.parametrize("k", [2, 15])
def test_list_is_that_of_all_scores(
    served: SearchEngine,
    q: str,
    where: dict[str, Any] | None,
    entries: Sequence[tuple[str, str, str]],
    k: int,
) -> None:
    """The groups that are scanned lose no video: the list equals that of every cosine plus lift plus words."""
    with _with_feedback(*entries):
        _check_list(served, SearchQuery(q=q, k=k, routes="all", where=where))


@pytest.mark.parametrize("q", ["a bird", "turns", "the word milk again", "a wave"])
@pytest.mark.parametrize("k", [1, 2, 15])
@pytest.mark.parametrize("where", [None, {"place": "harbour"}], ids=["all", "filtered"])
@pytest.mark.parametrize("many", [False, True])
def test_list_with_videos_without_captions_is_that_of_all_scores(
    served: SearchEngine,
    monkeypatch: pytest.MonkeyPatch,
    q: str,
    k: int,
    where: dict[str, Any] | None,
    many: bool,
) -> None:
    monkeypatch.setattr(executor, "_FEW_VECTORS", 0)
    monkeypatch.setattr(query_words, "_FEW", 0)
    monkeypatch.setattr(library_words, "_FEW", 0 if many else 10**6)
    monkeypatch.setattr(library_words, "_MANY", 10**6)
    edited = {"birds-1": BIRDS[1], "cars-2": CARS[2], "sea-0": SEA[0], "sea-1": SEA[1]}
    try:
        for video in edited:
            edit_video(video, VideoPatch(captions=[]))
        _check_list(served, SearchQuery(q=q, k=k, routes="all", where=where))
    finally:
        for video, caption in edited.items():
            edit_video(video, VideoPatch(captions=[caption]))


def _check_list(served: SearchEngine, query: SearchQuery) -> None:
    snapshot = served.snapshots.current()
    (search,) = execute(snapshot, parse_requests([query], served.settings), served.read_cache)
    expected: list[tuple[float, int]] = []
    for task, shard in snapshot.shards.items():
        allowed_ids = search.allowed_ids or dict.fromkeys(snapshot.shards)
        allowed = allowed_ids.get(task, np.empty(0, np.int64))
        ids = shard.ids if allowed is None else allowed
        if not len(ids):
            continue
        (vector,) = snapshot.query_vectors([(search.words.text, search.mode, task)])
        (hits,) = snapshot.scan([ShardScan(task, vector, len(ids), ids)])
        visual = snapshot.lineages[task].visual_score.log_odds(hits.scores)
        scores = visual + search.planner.prior_bonuses[task] + search.words.look_up(hits.ids)[0]
        expected += zip(scores.tolist(), hits.ids.tolist(), strict=True)
    ranked = [(hit.score, hit.id) for hit in search.planner.hits]
    expected.sort(key=lambda entry: -entry[0])
    assert len(ranked) == min(query.k + 1, len(expected))
    assert [video for _, video in ranked] == [video for _, video in expected[: len(ranked)]]
    assert [score for score, _ in ranked] == pytest.approx(
        [score for score, _ in expected[: len(ranked)]], abs=1e-5
    )


@pytest.mark.parametrize("typed", ["taxi!", "  taxi.", "(taxi)", "taxi…?"])
def test_punctuation_changes_no_answer(served: SearchEngine, typed: str) -> None:
    def answer(q: str) -> object:
        return served.search(q, k=9).model_dump(include={"results", "routing", "confidence", "matching"})

    assert answer(typed) == answer("taxi")


def test_phrase_is_marked_only_where_its_words_stand_side_by_side(served: SearchEngine) -> None:
    edit_video("cars-0", VideoPatch(captions=["it turns to the right", CARS[0]]))
    try:
        (text,) = served.search('"turns left"').results[0].words
        assert [text.text[start:end] for start, end in text.marks] == ["turns left"]
    finally:
        edit_video("cars-0", VideoPatch(captions=[CARS[0]]))


def test_number_of_matches_is_that_of_the_whole_list(served: SearchEngine) -> None:
    numbers = {served.search("word", k=k).matching for k in (1, 2, 15)}
    assert numbers == {3}
    assert served.search("word", where={"place": "harbour"}).matching in (None, 0)


def test_common_unit_in_another_text_of_the_video_completes_it(
    served: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_index, "COMMON_DOCUMENTS", 0)
    monkeypatch.setattr(word_index, "COMMON_SHARE", 0.1)
    edit_video("signs-1", VideoPatch(captions=["a narwhal", "signing"]))
    try:
        answer = served.search("narwhal signing")  # "signing" is in three texts
        assert (answer.results[0].video_id, answer.matching) == ("signs-1", 1)
    finally:
        edit_video("signs-1", VideoPatch(captions=[SIGNS[1]]))


def test_common_unit_weighs_by_its_share_of_all_texts(
    served: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_before = served.search("a bird").results[0].score
    monkeypatch.setattr(word_index, "COMMON_DOCUMENTS", 0)
    monkeypatch.setattr(word_index, "COMMON_SHARE", 0.05)  # of ten captions with "a", one is listed
    assert served.search("a bird").results[0].score == pytest.approx(score_before, abs=1)


def test_likely_videos_with_words_of_the_query_match(
    served: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caption that lacks a word of the query is no reason for an answer without a match."""
    # No visual score matches.
    answer = AnswerModel((2.0, 0.5, 0.25, 1.5), -4.0, threshold=1.0, reach=0.05, error=0.02)
    model = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), -3.0, 240, 0.04, answer)
    snapshot = served.snapshots.current().with_lineages(
        lambda lineage: replace(lineage, confidence_model=model)
    )
    monkeypatch.setattr(served.snapshots, "current", lambda: snapshot)
    answer = served.search("a red taxi turns left over", k=3)
    assert answer.results[0].video_id == "cars-0"
    assert (answer.matches, answer.results[0].matches) == (True, True)
    assert not any(result.matches for result in answer.results if (result.confidence or 0) < 0.9)
    other = served.search("a whale jumps")
    assert [result.video_id for result in other.results if result.matches] == ["sea-2"]


TEXTS = ["a barbell squat", "barbell bench press", "a barn owl", "sit-up", "Bär"]


@pytest.fixture(scope="module")
def words() -> WordIndex:
    texts = [(number, [VideoText(TextKind.CAPTION, text)]) for number, text in enumerate(TEXTS)]
    return WordIndex.empty().replace(texts)


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ("two BAR", [("barbell", 2), ("bar", 1), ("barn", 1)]),
        ("bär", [("barbell", 2), ("bar", 1), ("barn", 1)]),
        ("press ow", [("owl", 1)]),
        ("sit-u", [("up", 1)]),
        ("bar ", []),
        ("bar,", []),
        ("", []),
        ("\0\ud800\"'", []),
        ("zebra", []),
    ],
)
def test_last_word_is_continued(words: WordIndex, q: str, expected: list[tuple[str, int]]) -> None:
    suggestions = suggest_words(words, q, 8).suggestions
    assert [(each.text, each.count) for each in suggestions] == expected
    assert suggest_words(words, q, 1).suggestions == suggestions[:1]


def test_invalid_parameters_are_named(words: WordIndex) -> None:
    with pytest.raises(InvalidInput) as caught:
        suggest_words(words, "x" * (request_limits.MAX_QUERY_CHARS + 1), MAX_SUGGESTIONS + 1)
    assert [error.field for error in caught.value.errors] == ["q", "k"]
