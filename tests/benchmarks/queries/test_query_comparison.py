"""Libraries of several domains, the rows of the comparison, and how much of their answers is right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.queries.library_videos import LibraryVideo, hide_videos, read_domains
from benchmarks.queries.query_comparison import (
    KEPT_KINDS,
    UNKNOWN_KINDS,
    QueryResults,
    compare_on_queries,
    plan_libraries,
)
from benchmarks.queries.query_kinds import Query
from benchmarks.queries.query_report import compute_curves, compute_figures, query_tables, write_query_report
from benchmarks.queries.query_rivals import (
    CONVEX,
    FULL_TEXT,
    PRODUCT,
    ROWS,
    VISUAL,
    Bm25,
    Outcome,
    combine,
    compare_answers,
    fit_weights,
    half_of,
    stored_text,
)
from benchmarks.queries.served_library import Answer


@pytest.mark.endurance  # ingests three libraries, each in its own process
def test_all_rows_answer_all_kinds_of_queries(query_folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    results = compare_on_queries(
        [query_folder],
        backbone="tiny",
        method="analytic",
        cache=tmp_path / "cache",
        queries=4,
        report=lines.append,
    )
    starts = sorted(line.split(":")[0] for line in lines)
    assert starts[:2] == ["seed 0, all captions", "seed 0, first captions"]
    assert starts[2].startswith("seed 0, without ")
    rows = {(outcome.row, outcome.query.kind, outcome.gallery) for outcome in results.outcomes}
    kinds = {"learned": 4, "hidden": 2, "new wording": 4, "long description": 4}
    for row in ROWS:
        for kind in kinds:
            assert {(row, kind, "all"), (row, kind, "own")} <= rows
        for kind in ("words", "random letters", "captions of domains left out"):
            assert (row, kind, "all") in rows
            assert (row, kind, "own") not in rows
    words = [
        o.values["P@min(10, R)"] for o in results.outcomes if (o.row, o.query.kind) == (FULL_TEXT, "words")
    ]
    assert words == [100] * len(words), "few captions contain each word"
    for kind, count in kinds.items():
        queries = {o.query for o in results.outcomes if o.query.kind == kind}
        assert len(queries) == count
    table = write_query_report(tmp_path / "out", results, "cinestrata bench queries shapes", "tiny")
    assert "2 domains and 18 videos under neutral names, without metadata, of which 2 are hidden" in table
    for row in ROWS:
        assert f" | {row} | " in table
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    (figure,) = [
        figure
        for figure in stored["figures"]
        if (figure["row"], figure["kind"], figure["measure"]) == (FULL_TEXT, "words", "P@min(10, R)")
    ]
    assert figure["value"] == [100, 100, 100]
    assert {answer["kind"] for answer in stored["answers"]} == {o.query.kind for o in results.outcomes}


def _results(row: str, kind: str, values: dict[str, list[float]], domain: str | None = None) -> list[Outcome]:
    """Make outcomes of one query per value."""
    measures = [dict(zip(values, outcome, strict=True)) for outcome in zip(*values.values(), strict=True)]
    return [
        Outcome(row, "all", Query(kind, str(number), frozenset("v"), 1, domain), outcome)
        for number, outcome in enumerate(measures)
    ]


def test_curve_of_the_answer_that_no_video_matches() -> None:
    results = QueryResults({"gym": 9, "zoo": 9}, 2, 1, names=True)
    results.outcomes += _results(PRODUCT, KEPT_KINDS[0], {"confidence": [0.9, 0.8, 0.7, 0.4]})
    results.outcomes += _results(PRODUCT, UNKNOWN_KINDS[-1], {"confidence": [0.6, 0.4, 0.2, 0.1]})
    (curve,) = compute_curves(results)
    assert curve["area"][0] == pytest.approx((4 + 4 + 4 + 2.5) / 16)
    assert curve["area"][1] < curve["area"][0] < curve["area"][2] == 1
    assert "| product as served | 0.906 (" in query_tables(results, compute_figures(results))


def test_rivals_are_compared_where_the_product_can_tell_what_matches() -> None:
    results = QueryResults({"gym": 9}, 1, 1, names=True)
    results.outcomes += _results(PRODUCT, "heard", {"matches": [100.0, 0.0]})
    results.outcomes += _results(FULL_TEXT, "heard", {"matches": [100.0, 100.0, 0.0]})
    figures = compute_figures(results)
    (figure,) = (figure for (row, column), figure in figures.items() if row == FULL_TEXT)
    assert figure.value[0] == pytest.approx(200 / 3)
    assert figure.difference is not None
    assert figure.difference[0] == 50


def test_captions_of_other_domains_are_not_absent() -> None:
    library = {
        domain: [
            LibraryVideo(f"{domain}{text}", domain, "", Path(text), text, (text,), {}, (text,))
            for text in ("again", f"only {domain}", f"{domain} alone")
        ]
        for domain in ("gym", "zoo")
    }
    plan = plan_libraries(library, 0, 99)[-1]
    absent = {query.text for query in plan.queries if query.kind == UNKNOWN_KINDS[-1]}
    (left_out,) = library.keys() - plan.library.keys()
    assert absent == {f"only {left_out}", f"{left_out} alone"}
    assert {query.text for query in plan.queries if query.kind == KEPT_KINDS[0]} >= {"again"}


def test_hidden_videos_have_no_text_at_all(query_folder: Path, tmp_path: Path) -> None:
    library = hide_videos(read_domains([query_folder], tmp_path / "media"), 0)
    assert list(library) == ["disks", "stripes"]
    for videos in library.values():
        (hidden,) = (video for video in videos if video.is_hidden)
        assert hidden.file.name == "green-2.mp4", "the only one whose SHA-256 is a multiple of 5"
        assert [len(video.stored) for video in videos] == [0 if video.is_hidden else 3 for video in videos]
        assert stored_text(videos[0], with_names=False) == " ".join(videos[0].captions)
        assert (stored_text(hidden, with_names=False), hidden.metadata) == ("", {})
        assert "green" not in hidden.uri
        assert all((tmp_path / "media" / video.uri).is_file() for video in videos)


VIDEOS = [
    LibraryVideo(f"v{number:02d}", "gym", "", Path("x"), "x", ("text",), {}, ("text",))
    for number in range(40)
]
QUERIES = [Query("exact", video.id, frozenset([video.id]), 1, "gym") for video in VIDEOS]
HALVES = np.array([half_of(query) for query in QUERIES])


def test_a_weight_is_fitted_on_the_other_half_of_the_videos() -> None:
    assert 10 < HALVES.sum() < 30
    right = np.eye(len(VIDEOS)) * 9
    wrong = np.roll(right, 1, axis=1)
    # BM25 finds the videos of the first half only, the visual score those of the second half only.
    full_text, visual = (np.where((half == HALVES)[:, None], right, wrong) for half in (0, 1))
    candidates = [0.2, 0.8]
    weights = fit_weights(
        QUERIES, VIDEOS, candidates, lambda number, weight: combine(full_text[number], visual[number], weight)
    )
    assert weights == [0.2, 0.8]
    answers = [Answer([query.text]) for query in QUERIES]
    outcomes = compare_answers(QUERIES, VIDEOS, answers, {FULL_TEXT: full_text, VISUAL: visual}, weights)
    recalls = {
        row: [outcome.values["R@1"] for outcome in outcomes if outcome.row == row]
        for row in (PRODUCT, FULL_TEXT, VISUAL, CONVEX)
    }
    assert recalls[PRODUCT] == [100.0] * len(QUERIES)
    assert recalls[CONVEX] == [0.0] * len(QUERIES), "its weights are right for the half that it was fitted on"
    assert recalls[FULL_TEXT] == pytest.approx(100.0 * (HALVES == 0))
    assert recalls[VISUAL] == pytest.approx(100.0 * (HALVES == 1))


def test_other_domains_are_not_in_the_own_gallery() -> None:
    videos = [VIDEOS[0], LibraryVideo("z", "zoo", "", Path("z"), "z", ("text",), {}, ("text",))]
    query = Query("learned", "text", frozenset({"v00"}), 1, "gym")
    scores = {FULL_TEXT: np.array([[1.0, 2.0]]), VISUAL: np.array([[0.1, 0.2]])}
    answers = [Answer(["z"], True, 0.7), Answer(["v00"], False, 0.6)]
    outcomes = compare_answers([query], videos, answers, scores, [0.5, 0.5])
    first = {(o.row, o.gallery): o.values["R@1"] for o in outcomes}
    for row in (PRODUCT, FULL_TEXT, VISUAL, CONVEX):
        assert (first[row, "all"], first[row, "own"]) == (0, 100)
    product = {o.gallery: o.values for o in outcomes if o.row == PRODUCT}
    assert (product["all"]["matches"], product["own"]["matches"]) == (100, 0)
    assert product["all"]["confidence"] == 0.7


def test_bm25_scores_rare_words_and_short_texts_higher() -> None:
    bm25 = Bm25(["a red car", "a blue car on a long road", "", "red red rose"])
    scores = bm25("Red car!")
    assert scores[0] > scores[1] > -np.inf
    assert scores[2] == -np.inf, "a video without texts is not found"
    # idf = ln(1 + 3.5 / 1.5), tf part = 2.2 / (1 + 1.2 (0.25 + 0.75 · 3 / (13 / 3)))
    assert bm25("rose")[3] == pytest.approx(np.log(1 + 3.5 / 1.5) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 9 / 13)))
    assert (bm25("truck") == -np.inf).all()


def test_convex_combination_of_scaled_scores() -> None:
    nothing = -np.inf
    full_text, visual = np.array([nothing, 2.0, 4.0, 9.0]), np.array([0.9, 0.1, 0.5, nothing])
    assert combine(full_text, visual, 0.0) == pytest.approx([1, 0, 0.5, nothing])
    assert combine(full_text, visual, 0.25) == pytest.approx([0.75, 0.125, 0.625, nothing])
    assert combine(full_text, visual, 1.0) == pytest.approx([0, 0.5, 1, nothing])
    assert combine(np.full(2, nothing), np.zeros(2), 0.5) == pytest.approx([0, 0])
