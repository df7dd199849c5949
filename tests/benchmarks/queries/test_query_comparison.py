"""The product and its rivals on a library of two domains, and the library of a running service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.queries.library_videos import LibraryVideo
from benchmarks.queries.query_comparison import (
    KEPT_KINDS,
    UNKNOWN_KINDS,
    QueryResults,
    compare_on_queries,
    plan_libraries,
)
from benchmarks.queries.query_kinds import Query
from benchmarks.queries.query_report import compute_curves, compute_figures, query_tables, write_query_report
from benchmarks.queries.query_rivals import FULL_TEXT, PRODUCT, ROWS, Outcome


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
