"""Commands in the documentation are those of the command line and the Makefile."""

from __future__ import annotations

import re
from typing import Any

from typer.main import get_command

from cli.main import app
from tests.deploy.documented_commands import ROOT, commands

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/RESULTS.md",
    "clients/python/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")),
)
COMMAND_LINE: Any = get_command(app)
COMMANDS = [(document, *command) for document in DOCUMENTS for command in commands(document)]


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
