"""RESULTS.md and the README show what the files of benchmarks/results hold, whose figures reports replace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
