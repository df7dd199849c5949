"""Texts in the source code that a user may read: errors and hints, which may name requests of the API."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["REQUEST", "shown_texts"]

REQUEST = re.compile(r"\b(?:GET|POST|PUT|PATCH|DELETE) /\w")

_ROOT = Path(__file__).parents[1]


def shown_texts(*packages: str) -> list[str]:
    """String constants of packages, without docstrings and the descriptions that the API documentation shows."""
    return [
        node.value
        for package in packages
        for path in sorted((_ROOT / package).rglob("*.py"))
        if path.name != "terminal_hints.py"
        for node in _constants(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node.value, str)
    ]


def _constants(module: ast.Module) -> Iterator[ast.Constant]:
    skipped: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        if isinstance(node, ast.keyword) and node.arg == "description":
            skipped.update(id(child) for child in ast.walk(node.value))
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(child) for child in node.values)
            text = "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
            yield ast.Constant(text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node
