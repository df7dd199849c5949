"""Reports on the queries of a domain: ranks, first results and worst queries, compared with searches."""

from __future__ import annotations

from typing import Any

import pytest

from service.catalog.database import session_scope
from service.catalog.tables import Recall, Task, Video
from service.core import request_limits
from service.core.errors import Conflict, NotFound
from service.search import explanations
from service.search.engine import SearchEngine
from service.search.explanations import sample_captions
from tests.service.search.caption_library import BIRDS, CARS, Library, Served

# The vector of a video is that of its first caption; each of these captions describes another video.
SWAPPED = [BIRDS[1], CARS[0], BIRDS[0]]


VIDEOS = {"birds": BIRDS, "cars": CARS, "mute": ["a"]}
SPLITS = {"birds": "test", "cars": "train", "mute": "train"}


def learn(library: Library) -> None:
    for name, captions in VIDEOS.items():
        library.add_task(name, captions, facts=[{"effective_split": SPLITS[name]}] * len(captions))


@pytest.fixture
def served(shared: Served, monkeypatch: pytest.MonkeyPatch) -> SearchEngine:
    """The engine of the library, whose catalog is as after learning; the domain "mute" has no captions."""
    monkeypatch.setattr(request_limits, "MAX_RESULTS", 4)
    for name, captions in VIDEOS.items():
        for number, caption in enumerate(captions):
            _edit(f"{name}-{number}", captions=[caption], content_hash=None)
    _edit("mute-0", captions=[])
    with session_scope(write=True) as session:
        for task in session.query(Task):
            task.state, task.target_id = "ready", None
        session.query(Recall).delete()
    return shared[1]


def _edit(video_id: str, **values: Any) -> None:
    with session_scope(write=True) as session:
        video = session.query(Video).filter(Video.id == video_id).one()
        for name, value in values.items():
            setattr(video, name, value)


def _swap_captions() -> None:
    for number, caption in enumerate(SWAPPED):
        _edit(f"birds-{number}", captions=[caption])


def test_captions_that_find_their_videos_are_not_among_the_worst(served: SearchEngine) -> None:
    report = served.report_queries("tsk_birds")
    assert (report.task, report.split, report.held_out) == ("birds", "test", True)
    assert (report.queries, report.captions, report.depth) == (3, 3, 4)
    assert (report.recall_at_1, report.recall_at_10, report.worst) == (1.0, 1.0, [])
    assert [(share.task_id, share.queries, share.share) for share in report.first_results] == [
        ("tsk_birds", 3, 1.0)
    ]


@pytest.mark.usefixtures("no_words")
def test_ranks_and_results_are_those_of_a_search(served: SearchEngine) -> None:
    service = served
    _swap_captions()
    report = service.report_queries("tsk_birds")
    assert report.recall_at_1 == 0
    assert {share.task_id: share.queries for share in report.first_results} == {"tsk_birds": 2, "tsk_cars": 1}
    assert sum(share.share for share in report.first_results) == pytest.approx(1)
    assert {outcome.caption for outcome in report.worst} == set(SWAPPED)
    ranks = []
    for outcome in report.worst:
        searched = service.search(outcome.caption, k=4).results
        ids = [result.video_id for result in searched]
        assert outcome.rank == (1 + ids.index(outcome.video_id) if outcome.video_id in ids else None)
        assert [result.video_id for result in outcome.results] == ids[:3]
        assert [result.score for result in outcome.results] == pytest.approx(
            [result.score for result in searched[:3]]
        )
        ranks.append(outcome.rank or 99)
    assert ranks == sorted(ranks, reverse=True)


def test_number_of_worst_queries_is_limited(served: SearchEngine) -> None:
    _swap_captions()
    all_worst = served.report_queries("tsk_birds").worst
    assert served.report_queries("tsk_birds", worst=1).worst == all_worst[:1]
    assert served.report_queries("tsk_birds", worst=0).worst == []


def test_captions_are_searched_once_until_they_change(
    served: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    execute = explanations.execute

    def count(snapshot: Any, requests: Any, *others: Any, **options: Any) -> Any:
        started.append(len(requests))
        return execute(snapshot, requests, *others, **options)

    monkeypatch.setattr(explanations, "execute", count)
    first = served.report_queries("tsk_birds")
    assert served.report_queries("tsk_birds") == first
    assert started == [3]
    _edit("birds-0", captions=[CARS[1]])
    assert served.report_queries("tsk_birds").recall_at_1 == pytest.approx(2 / 3)
    assert started == [3, 3]


def test_training_captions_are_reported_as_such_and_no_captions_as_an_empty_report(
    served: SearchEngine,
) -> None:
    report = served.report_queries("tsk_cars")
    assert (report.split, report.held_out, report.queries) == ("train", False, 3)
    report = served.report_queries("tsk_mute")
    assert (report.task, report.split, report.queries, report.recall_at_1) == ("mute", None, 0, None)
    assert (report.first_results, report.worst, report.measured) == ([], [], {})


def test_report_contains_the_stored_recall_of_the_newest_release(served: SearchEngine) -> None:
    def cell(release: int, task: int, mode: str, gallery: str, r1: float) -> Recall:
        figures = {"queries": 9, "r1": r1, "r5": 0.9, "r10": 1.0, "medr": 1.0, "meanr": 1.0}
        return Recall(release_order=release, task_order=task, mode=mode, gallery=gallery, **figures)

    mode = served.report_queries("tsk_birds").mode
    assert mode is not None
    with session_scope(write=True) as session:
        session.add_all(
            [
                cell(0, 1, mode, "local", 0.1),
                cell(1, 1, mode, "local", 0.2),
                cell(2, 1, mode, "local", 0.3),
                cell(2, 1, mode, "global", 0.4),
                cell(2, 2, mode, "local", 0.5),
            ]
        )
    measured = served.report_queries("tsk_birds").measured
    assert {gallery: figures.r1 for gallery, figures in measured.items()} == {"local": 0.3, "global": 0.4}


def test_sample_takes_first_captions_of_all_videos_before_others(served: SearchEngine) -> None:
    _edit("birds-0", captions=["one", "  ", "two", "x" * 1500], content_hash="b")
    _edit("birds-1", captions=["three"], content_hash="a")
    _edit("birds-2", captions=[], content_hash="c")
    sample = sample_captions("tsk_birds")
    assert [caption.text for caption in sample.captions] == ["three", "one", "two", "x" * 1000]
    assert sample.videos == 2
    assert [caption.text for caption in sample_captions("tsk_birds", limit=2).captions] == ["three", "one"]


def test_unlearned_task_and_append_are_refused(served: SearchEngine) -> None:
    with pytest.raises(NotFound, match="no task 'nowhere'"):
        served.report_queries("nowhere")
    with session_scope(write=True) as session:
        session.get_one(Task, "tsk_cars").state = "training"
    with pytest.raises(Conflict, match="'cars' is not learned yet"):
        served.report_queries("tsk_cars")
    with session_scope(write=True) as session:
        session.get_one(Task, "tsk_cars").target_id = "tsk_birds"
    with pytest.raises(Conflict, match="is an append"):
        served.report_queries("tsk_cars")
