"""The product and its rivals on a library of two domains, ingested by the jobs of the workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.queries.query_comparison import (
    FULL_TEXT,
    FUSION,
    PRODUCT,
    ROWS,
    VISUAL,
    Outcome,
    QueryResults,
    compare_on_queries,
)
from benchmarks.queries.query_kinds import Query
from benchmarks.reporting.query_report import compute_figures, query_tables, write_query_report


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
    found = {(outcome.row, outcome.query.kind, outcome.gallery) for outcome in results.outcomes}
    kinds = {"learned": 4, "hidden": 2, "new wording": 4, "long description": 4}
    for row in ROWS:
        for kind in kinds:
            assert {(row, kind, "all"), (row, kind, "own")} <= found
        for kind in ("words", "random letters", "captions of domains left out"):
            assert (row, kind, "all") in found
            assert (row, kind, "own") not in found
    for row in (FULL_TEXT, FUSION):
        words = [
            o.values["P@min(10, R)"] for o in results.outcomes if o.row == row and o.query.kind == "words"
        ]
        assert words == [100] * len(words), "few captions contain each word"
    for kind, count in kinds.items():
        queries = {o.query for o in results.outcomes if o.query.kind == kind}
        assert len(queries) == count
    table = write_query_report(tmp_path / "out", results, "cinestrata bench queries shapes", "tiny")
    assert "2 domains and 18 videos under neutral names, without metadata, of which 2 are hidden" in table
    for row in ROWS:
        assert f"| {row} | " in table
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    (figure,) = [
        figure
        for figure in stored["figures"]
        if (figure["row"], figure["kind"], figure["measure"]) == (FULL_TEXT, "words", "P@min(10, R)")
    ]
    assert figure["value"] == [100, 100, 100]
    assert {answer["kind"] for answer in stored["answers"]} == {o.query.kind for o in results.outcomes}


def test_table_says_where_a_rival_is_better() -> None:
    results = QueryResults({"gym": 9, "zoo": 9}, 2, 2, names=False)
    for query in range(40):
        for row, value in ((PRODUCT, 50.0), (FULL_TEXT, 100.0), (VISUAL, 50.0 + query - 19), (FUSION, 10.0)):
            for _ in range(results.seeds):
                values = {"P@min(10, R)": value, "matches": 100.0}
                results.outcomes.append(Outcome(row, "all", Query("words", str(query)), values))
    table = query_tables(results, compute_figures(results))
    assert "| product as served | 50.0 (50.0 to 50.0) | 100.0 (100.0 to 100.0) |" in table
    assert "| BM25 | 100.0 (100.0 to 100.0) ▲ | 100.0 (100.0 to 100.0) |" in table
    assert " △ |" in next(line for line in table.splitlines() if line.startswith(f"| {VISUAL} "))
    assert f"| {FUSION} | 10.0 (10.0 to 10.0) | 100.0" in table
    assert "| queries | 40 | 40 |" in table
