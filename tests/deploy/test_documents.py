"""README, docs and Makefile: links, paths and verbs exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md"))
)
PACKAGES = ("models", "media", "index", "service", "trainer", "api", "cli", "benchmarks", "deploy", "docker")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_resolve(document: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / document).read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert ((ROOT / document).parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS)
def test_anchors_resolve(document: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", (ROOT / document).read_text()):
        path = (ROOT / document).parent / target if target else ROOT / document
        if path.suffix == ".md":
            assert anchor in _heading_anchors(path), f"{target}#{anchor}"


def _heading_anchors(document: Path) -> set[str]:
    """Return the anchors of the headings, as the web pages of repositories name them; fenced code is left out."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "CHANGELOG.md"])
def test_paths_in_code_spans_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    for path in re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w./-]*\.(?:py|ya?ml|md))`", text):
        assert (ROOT / path).exists(), path
