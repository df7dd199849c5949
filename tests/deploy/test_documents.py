"""README, docs and Makefile: links, paths, commands and verbs exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.main import app
from tests.deploy.documented_commands import ROOT, commands

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


COMMAND_DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/RESULTS.md",
    "clients/python/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")),
)
COMMAND_LINE: Any = get_command(app)
COMMANDS = [(document, *command) for document in COMMAND_DOCUMENTS for command in commands(document)]


def test_documented_commands_are_accepted_by_the_command_line() -> None:
    """Those in the text may lack values, but name existing commands and options."""
    problems = []
    for document, is_block, words in COMMANDS:
        try:
            if words[0] == "cinestrata" and "--install-completion" not in words:  # parsing installs it
                _parse(COMMAND_LINE, words[1:])
        except Exception as error:
            if is_block or "No such" in str(error):
                problems.append(f"{document}: {' '.join(words)[:120]}: {error}")
    assert not problems


def _parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse a command line without executing it."""
    context = command.make_context("cinestrata", words, parent=parent)
    if hasattr(command, "commands"):
        _, child, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        _parse(child, rest, context)


def test_documented_make_verbs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([\w-]+(?: [\w-]+)*):", makefile, re.MULTILINE)
    verbs = {verb for target in targets for verb in target.split()}
    problems = []
    for document, _, (program, *words) in COMMANDS:
        for word in words if program == "make" else ():
            name, equals, _ = word.partition("=")
            if not (re.search(rf"\$[({{]{name}\b", makefile) if equals else name in verbs):
                problems.append(f"{document}: make {word}")
    assert not problems
