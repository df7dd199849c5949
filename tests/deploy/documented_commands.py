"""Commands in the documentation: simple commands of shell blocks, and commands in code spans of the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^( *)```sh\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`((?:cinestrata|make|python -m) [^`]+)`")
_SEPARATORS = frozenset({"|", "||", "&&", ";", "&"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


@dataclass(frozen=True)
class DocumentedCommand:
    """A command with its arguments, without redirections and variables.

    Attributes:
        place: Document and line.
        words: Program and arguments.
    """

    place: str
    words: tuple[str, ...]


def shell_blocks(document: str) -> list[tuple[int, str]]:
    """Return the shell blocks of a document, each with the number of its first line."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start()) + 2, re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE))
        for found in _BLOCK.finditer(text)
    ]


def block_commands(document: str) -> Iterator[DocumentedCommand]:
    """Yield the simple commands of all shell blocks."""
    for first, block in shell_blocks(document):
        for line, statement in _statements(block):
            for words in _simple_commands(statement):
                yield DocumentedCommand(f"{document}:{first + line}", tuple(words))


def span_commands(document: str) -> Iterator[DocumentedCommand]:
    """Yield the commands in code spans, which may be incomplete."""
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.M | re.S)
    for found in _SPAN.finditer(text):
        for words in _simple_commands(" ".join(found[1].split())):
            yield DocumentedCommand(f"{document}: {found[0]}", tuple(words))


def _statements(block: str) -> Iterator[tuple[int, str]]:
    """Yield statements with the numbers of their first lines; quotes and backslashes continue a statement."""
    lines: list[str] = []
    for number, line in enumerate(block.splitlines()):
        lines.append(line)
        statement = "\n".join(lines)
        if line.endswith("\\") or not _is_complete(statement):
            continue
        yield number + 1 - len(lines), statement.replace("\\\n", " ")
        lines = []
    if lines:
        raise ValueError(f"The statement does not end: {lines[0]}")


def _is_complete(statement: str) -> bool:
    try:
        shlex.split(statement, comments=True)
    except ValueError:  # an open quote
        return False
    return True


def _simple_commands(statement: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(statement, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter(lexer)
    for token in tokens:
        if token in _SEPARATORS:
            yield from _command(words)
            words = []
        elif set(token) <= set("<>"):
            next(tokens)  # the file of a redirection
        else:
            words.append(token)
    yield from _command(words)


def _command(words: list[str]) -> Iterator[list[str]]:
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    if words[:3] == ["docker", "compose", "exec"]:
        words = words[4:]
    if words:
        yield words
