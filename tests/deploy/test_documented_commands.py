"""Commands in the documentation are those of the command line and the Makefile."""

from __future__ import annotations

import re
from typing import Any

from typer.main import get_command

from cli.main import app
from tests.deploy.documented_commands import ROOT, DocumentedCommand, block_commands, span_commands

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/RESULTS.md",
    "clients/python/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")),
)
UNCHECKED = frozenset({"bash", "cp", "curl", "docker", "export", "jq", "pip", "python", "source"})
COMMAND_LINE: Any = get_command(app)


def _commands(program: str, *, with_spans: bool = True) -> list[DocumentedCommand]:
    found = [command for document in DOCUMENTS for command in block_commands(document)]
    if with_spans:
        found += [command for document in DOCUMENTS for command in span_commands(document)]
    return [command for command in found if command.words[0] == program]


def _problem(command: DocumentedCommand, error: object) -> str:
    return f"{command.place}: {' '.join(command.words)[:120]}: {error}"


def test_every_program_of_the_documents_is_checked() -> None:
    programs = {command.words[0] for document in DOCUMENTS for command in block_commands(document)}
    assert programs - UNCHECKED == {"cinestrata", "make"}


def test_documented_commands_are_accepted_by_the_command_line() -> None:
    commands = _commands("cinestrata", with_spans=False)
    assert len(commands) > 40
    problems = []
    for command in commands:
        try:
            _parse(COMMAND_LINE, list(command.words[1:]))
        except Exception as error:
            problems.append(_problem(command, error))
    assert not problems


def test_commands_and_options_in_the_text_exist() -> None:
    commands = _commands("cinestrata")
    assert len(commands) > 80
    problems = []
    for command in commands:
        node: Any = COMMAND_LINE
        words = list(command.words[1:])
        while hasattr(node, "commands") and words and words[0] in node.commands:
            node = node.commands[words.pop(0)]
        options = {name for parameter in node.params for name in (*parameter.opts, *parameter.secondary_opts)}
        options |= {"--help", "--install-completion"}
        problems += [
            _problem(command, f"no option {word}")
            for word in words
            if word.startswith("-") and word.split("=")[0] not in options and not re.fullmatch(r"-\w+", word)
        ]
        if hasattr(node, "commands") and words and not words[0].startswith("-"):
            problems.append(_problem(command, f"no command {words[0]}"))
    assert not problems


def _parse(command: Any, words: list[str], parent: Any = None) -> None:
    """Parse a command line without executing it."""
    context = command.make_context("cinestrata", words, parent=parent)
    if hasattr(command, "commands"):
        _, child, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        _parse(child, rest, context)


def test_documented_make_verbs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+(?: [\w-]+)*):", makefile, re.MULTILINE))
    verbs = {verb for target in targets for verb in target.split()}
    problems = []
    for command in _commands("make"):
        for word in command.words[1:]:
            name, equals, _ = word.partition("=")
            is_known = re.search(rf"\$[({{]{name}\b", makefile) if equals else name in verbs
            if not is_known:
                problems.append(_problem(command, word))
    assert not problems
