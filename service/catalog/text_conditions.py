"""Conditions of lists on texts, the same on both databases."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, false, func, or_
from sqlalchemy.orm import InstrumentedAttribute

__all__ = ["contains_text"]


def contains_text(
    text: str,
    columns: Iterable[InstrumentedAttribute[Any]],
    json_columns: Iterable[InstrumentedAttribute[Any]] = (),
) -> ColumnElement[bool]:
    """Return the condition that one of the columns contains a text, regardless of case.

    Databases change the case of ASCII letters only, or depend on their locale. A text with other letters is found as
    written, and in lower, upper and title case.

    Args:
        text: The text; without NUL, which no column can contain.
        columns: Columns of texts.
        json_columns: Columns of lists of texts, stored as JSON in ASCII.
    """
    if "\0" in text:
        return false()
    text = text.encode("utf-8", "replace").decode()
    variants = dict.fromkeys([text, text.lower(), text.upper(), text.title()])
    conditions = [
        func.lower(column).contains(lowered, autoescape=True)
        for column in columns
        for lowered in dict.fromkeys(_lower_ascii(variant) for variant in variants)
    ]
    conditions += [
        func.lower(cast(column, Text)).contains(escaped, autoescape=True)
        for column in json_columns
        for escaped in dict.fromkeys(json.dumps(variant)[1:-1].lower() for variant in variants)
    ]
    return or_(*conditions)


def _lower_ascii(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)
