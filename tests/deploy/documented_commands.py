"""Commands in the documentation: those of shell blocks, and those in code spans of the text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^( *)```sh\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`((?:cinestrata|make) [^`]+)`")
_SEPARATORS = re.compile(r"[|&;]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def shell_blocks(document: str) -> list[tuple[int, str]]:
    """Return the shell blocks of a document, each with the number of its first line."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, block.start()) + 2, re.sub(rf"^{block[1]}", "", block[2], flags=re.MULTILINE))
        for block in _BLOCK.finditer(text)
    ]


def commands(document: str) -> Iterator[tuple[bool, list[str]]]:
    """Yield whether a command is in a shell block, and its words; those in code spans may be incomplete."""
    for _, block in shell_blocks(document):
        lines = re.sub(r"(^|\s)#.*", "", block.replace("\\\n", " "), flags=re.MULTILINE).splitlines()
        for words in _words(" ; ".join(lines)):
            yield True, words
    text = re.sub(r"^ *```.*?^ *```$", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.M | re.S)
    for span in _SPAN.finditer(text):
        for words in _words(" ".join(span[1].split())):
            yield False, words


def _words(statements: str) -> Iterator[list[str]]:
    """Yield the simple commands of statements, without variables and redirections."""
    lexer = shlex.shlex(statements, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for token in tokens:
        if set(token) <= set("<>"):
            next(tokens)  # the file
            continue
        if not _SEPARATORS.fullmatch(token):
            words.append(token)
            continue
        while words and _ASSIGNMENT.fullmatch(words[0]):
            words.pop(0)
        if words[:3] == ["docker", "compose", "exec"]:
            words = words[4:]
        if words:
            yield words
        words = []
