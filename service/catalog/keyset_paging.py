"""Keyset pagination, where a page begins after the previous page's last row, and text conditions for lists.

Rows inserted or deleted while a client pages neither repeat nor hide other rows, and no page reads the rows of previous
ones. A cursor holds the sort order and the last row's position. It is opaque, but neither secret nor signed: it gives
no access beyond the list itself.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from string import ascii_lowercase, ascii_uppercase
from types import GenericAlias
from typing import Annotated, Any

from pydantic import AwareDatetime, Field, StringConstraints, TypeAdapter
from pydantic_core import to_json
from sqlalchemy import ColumnElement, Select, Text, and_, cast, false, func, or_
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.core.errors import InvalidInput

_MAX_CURSOR_CHARS = 2000
_ASCII_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_VALUES: Mapping[type, Any] = {  # that both databases accept
    int: Annotated[int, Field(ge=-(2**63), lt=2**63)],
    float: Annotated[float, Field(allow_inf_nan=False)],
    str: Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")],
    datetime: AwareDatetime,
}

Column = InstrumentedAttribute[Any]
Condition = ColumnElement[bool]


@dataclass(frozen=True)
class Page:
    """The entities of a page in order, and the cursor of the next page; None on the last page."""

    rows: Sequence[Any]
    next_cursor: str | None


@dataclass(frozen=True)
class KeysetOrders:
    """A list's sort orders: columns by the name of their order, which ``-`` in front reverses.

    Rows with equal values are ordered by a unique column, which is never null; rows without a value come last.
    """

    columns: Mapping[str, Column]
    unique: Column

    def read_page(
        self, session: Session, query: Select[Any], sort: str, cursor: str | None, limit: int
    ) -> Page:
        """Read one page of a query for entities, which has no order; raise InvalidInput for a wrong cursor."""
        column, descending = self.columns[sort.removeprefix("-")], sort.startswith("-")
        keys = [self.unique] if column is self.unique else [column, self.unique]
        if cursor is not None:
            query = query.where(_after(keys, _parse_cursor(cursor, sort, keys), descending))
        order = [key.desc() if descending else key.asc() for key in keys]
        if _is_nullable(column):
            order.insert(0, column.is_(None).asc())
        rows = session.scalars(query.order_by(*order).limit(limit + 1)).all()
        if len(rows) <= limit:
            return Page(rows, None)
        last = rows[limit - 1]
        cursor_values = to_json([sort, *(getattr(last, key.key) for key in keys)])
        return Page(rows[:limit], base64.urlsafe_b64encode(cursor_values).rstrip(b"=").decode())


def _is_nullable(column: Column) -> bool:
    return bool(column.property.columns[0].nullable)


def _after(keys: Sequence[Column], values: Sequence[Any], descending: bool) -> Condition:
    """Build the condition for rows after a position; rows without a value come last in both directions."""
    *first, unique = keys
    after_unique: Condition = unique < values[-1] if descending else unique > values[-1]
    if not first:
        return after_unique
    (column,), value = first, values[0]
    if value is None:
        return and_(column.is_(None), after_unique)
    after = or_(column < value if descending else column > value, and_(column == value, after_unique))
    return or_(after, column.is_(None)) if _is_nullable(column) else after


def _parse_cursor(text: str, sort: str, keys: Sequence[Column]) -> list[Any]:
    try:
        if len(text) > _MAX_CURSOR_CHARS:
            raise ValueError("too long")
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        cursor_sort, *values = _cursor_type(tuple(keys)).validate_json(raw, strict=True)
    except ValueError:
        raise InvalidInput.at(
            "cursor", "The cursor is invalid.", "Send the previous page's next_cursor."
        ) from None
    if cursor_sort != sort:
        raise InvalidInput.at(
            "cursor",
            "The cursor belongs to another sort order.",
            "Keep the first page's parameters, or omit the cursor.",
        )
    return values


@cache
def _cursor_type(keys: tuple[Column, ...]) -> TypeAdapter[tuple[Any, ...]]:
    """Create the type of a cursor: the sort order, and a value of each key's column."""
    values = [(_VALUES[key.type.python_type], _is_nullable(key)) for key in keys]
    fields = [value | None if is_nullable else value for value, is_nullable in values]
    cursor: Any = GenericAlias(tuple, (str, *fields))
    return TypeAdapter(cursor)


def contains_text(
    text: str,
    columns: Iterable[InstrumentedAttribute[Any]],
    json_columns: Iterable[InstrumentedAttribute[Any]] = (),
) -> ColumnElement[bool]:
    """Build the condition that one of the columns, or of those with lists of texts as ASCII JSON, contains a text.

    Databases fold only ASCII letters, or depend on their locale. Text with other letters is found as written, and in
    lower, upper and title case.
    """
    if "\0" in text:
        return false()
    text = text.encode("utf-8", "replace").decode()
    variants = dict.fromkeys([text, text.lower(), text.upper(), text.title()])
    conditions = [
        func.lower(column).contains(lowered, autoescape=True)
        for column in columns
        for lowered in dict.fromkeys(variant.translate(_ASCII_LOWER) for variant in variants)
    ]
    conditions += [
        func.lower(cast(column, Text)).contains(escaped, autoescape=True)
        for column in json_columns
        for escaped in dict.fromkeys(json.dumps(variant)[1:-1].lower() for variant in variants)
    ]
    return or_(*conditions)
