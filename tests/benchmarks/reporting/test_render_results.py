"""RESULTS.md and the README show what the files of benchmarks/results hold, whose figures reports replace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reporting import render_results
from benchmarks.reporting.publish_queries import format_file, publish
from benchmarks.reporting.render_results import DOCUMENTS, OVERVIEW, RESULTS, load, render

PAGE, README = DOCUMENTS
NAMES = sorted(path.stem for path in RESULTS.iterdir())
DECIMAL = re.compile(r"\d[\d,]*\.\d+")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_the_figures_of_the_files(document: Path) -> None:
    """Figures in the text are those of the files."""
    text = document.read_text(encoding="utf-8")
    assert render(text) == text, "run python -m benchmarks.reporting.render_results"
    prose = re.sub(r"<!-- table:.*?<!-- end -->|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    if document == README:
        prose = prose.split("\n## Results\n")[1].split("\n## ")[0]
    figures = {figure for name in NAMES for figure in _figures(load(name))}
    assert len(DECIMAL.findall(prose)) > 4
    assert set(DECIMAL.findall(prose)) - figures == set()


def test_every_file_is_shown_once() -> None:
    shown = [
        re.findall(r"<!-- table: ([\w-]+) -->", page.read_text(encoding="utf-8")) for page in (PAGE, README)
    ]
    assert sorted(shown[0]) == NAMES
    assert shown[1] == [OVERVIEW]


@pytest.mark.parametrize("name", NAMES)
def test_files_say_how_they_were_measured(name: str) -> None:
    content = load(name)
    assert all(isinstance(content[key], str) for key in ("interval", "seeds"))
    assert content["hardware"]
    assert re.fullmatch(r"[0-9a-f]{8}(, [0-9a-f]{8})*", content["commit"])
    assert content["command"]
    if "rows" in content:
        assert {len(row) for row in content["rows"]} == {len(content["columns"])}


def _figures(value: Any) -> Iterator[str]:
    """Yield the decimal numbers of a file as they may be written: those of texts, and numbers to 0, 1 and 2
    decimals.
    """
    if isinstance(value, str):
        yield from DECIMAL.findall(value)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _figures(part)
    elif isinstance(value, list):
        for part in value:
            yield from _figures(part)
    elif isinstance(value, float):
        yield from (f"{abs(value):,.{decimals}f}" for decimals in (1, 2))


HOW = {"command": ["make one", "make two"], "commit": "01234567", "hardware": "two cores", "interval": ""}


def test_cells_show_numbers_deviations_and_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ["text", 1234, -0.25, None, [17.75, 0.3], [-1.0, -2.0, 3.0]]
    content = {**HOW, "seeds": "three seeds", "columns": list("abcdef"), "rows": [row]}
    (tmp_path / "one.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(render_results, "RESULTS", tmp_path)
    assert render("before\n<!-- table: one -->\nold\n<!-- end --> after") == (
        "before\n<!-- table: one -->\n| a | b | c | d | e | f |\n| --- | --- | --- | --- | --- | --- |\n"
        "| text | 1,234 | −0.2 | – | 17.8 ± 0.3 | −1.0 (−2.0 to 3.0) |\n\n"
        "`make one`, `make two`; three seeds; two cores; commit 01234567. <!-- end --> after"
    )


def test_rivals_that_are_better_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def figure(row: str, difference: list[float] | None) -> dict[str, Any]:
        key = {"kind": "words", "measure": "R@1", "gallery": "own", "group": ""}
        return {"row": row, **key, "queries": 9, "value": [50.0, 40.0, 60.0], "difference": difference}

    content = {
        **HOW,
        "seeds": "",
        "tables": [{"words R@1": ["words", "R@1", "own", ""], "hidden": ["hidden", "R@1", "own", ""]}],
        "figures": [
            figure("product", None),
            figure("better", [3.0, 1.0, 5.0]),
            {**figure("level", [3.0, -1.0, 7.0]), "over_queries": [51.0, 41.0, 61.0]},
        ],
    }
    (tmp_path / "one.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(render_results, "RESULTS", tmp_path)
    rows = render("<!-- table: one -->\n<!-- end -->").splitlines()[3:6]
    assert rows == [
        "| product | 50.0 (40.0 to 60.0) | – |",
        "| better | 50.0 (40.0 to 60.0) ▲ | – |",
        "| level | 50.0 (40.0 to 60.0) △ / 51.0 | – |",
    ]


PUBLISHED = ("retyped", "searches-13-domains", "uncaptioned")


def _report(*figures: tuple[str, str, str, float]) -> dict[str, Any]:
    return {
        "figures": [
            {"row": row, "kind": kind, "measure": measure, "gallery": "all", "group": "", "queries": 9}
            | {"value": [value] * 3, "difference": None, "over_queries": [value] * 3, "other": 1}
            for row, kind, measure, value in figures
        ],
        "curves": [{"row": "product", "present": "hidden", "area": [0.5, 0.25, 0.75]}],
    }


@pytest.mark.parametrize("name", PUBLISHED)
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
