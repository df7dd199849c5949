"""The figures of ``bench queries`` replace those of a file in ``benchmarks/results``."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.reporting.publish_queries import format_file, publish
from benchmarks.reporting.render_results import RESULTS, load

NAMES = ("retyped", "searches-13-domains", "uncaptioned")


def _report(*figures: tuple[str, str, str, float]) -> dict[str, Any]:
    return {
        "figures": [
            {"row": row, "kind": kind, "measure": measure, "gallery": "all", "group": "", "queries": 9}
            | {"value": [value] * 3, "difference": None, "over_queries": [value] * 3, "other": 1}
            for row, kind, measure, value in figures
        ],
        "curves": [{"row": "product", "present": "hidden", "area": [0.5, 0.25, 0.75]}],
    }


@pytest.mark.parametrize("name", NAMES)
def test_files_have_the_published_form(name: str) -> None:
    assert format_file(load(name)) == (RESULTS / f"{name}.json").read_text(encoding="utf-8")


def test_the_tables_of_a_file_select_its_figures() -> None:
    key = {"gallery": "all", "group": ""}
    content = {
        "commit": "old",
        "tables": [{"a": ["words", "R@1", "all", ""], "b": ["hidden", "area", "all", ""]}],
        "figures": [{"row": "product", "value": [0.0]}],
    }
    report = _report(
        ("product", "words", "R@1", 12.34567),
        ("product", "words", "R@10", 1),
        ("left out", "words", "R@1", 1),
    )
    published = publish(content, [report], "new")
    assert published["commit"] == "new"
    assert published["figures"] == [
        {"row": "product", "kind": "words", "measure": "R@1", **key, "queries": 9}
        | {"value": [12.346] * 3, "difference": None, "over_queries": [12.346] * 3},
        {"row": "product", "kind": "hidden", "measure": "area", **key, "queries": 0}
        | {"value": [50.0, 25.0, 75.0], "difference": None},
    ]


def test_reports_become_columns_of_means() -> None:
    content = {
        "commit": "old",
        "methods": ["a", "b"],
        "measures": [["words", "R@1"]],
        "rows": [["word", "1, 2"]],
    }
    reports = [_report(("a", "words", "R@1", x), ("b", "words", "R@1", x + 1)) for x in (1.0, 5.25)]
    assert publish(content, reports, "new")["rows"] == [["word", "1.0, 2.0", "5.2, 6.2"]]
