"""Columns of a table of videos: their names, and the fields of a video that they contain.

A column of files is named ``uri``, ``file``, ``filename``, ``path`` or ``video``; a column of captions ``captions``,
``caption``, ``text`` or ``description``. ``id`` and ``split`` are fields of a video; all other columns are metadata.
The case of these names has no meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.core.errors import InvalidInput

__all__ = ["FILE_COLUMNS", "count_known_columns", "map_columns", "row_fields"]

FILE_COLUMNS = ("file", "filename", "path", "video", "uri")

_FIELDS = {
    **dict.fromkeys(FILE_COLUMNS, "uri"),
    **dict.fromkeys(("caption", "captions", "text", "description"), "captions"),
    "id": "id",
    "split": "split",
}


def count_known_columns(names: Sequence[str]) -> int:
    """Number of names that are fields of a video."""
    return sum(name.strip().lower() in _FIELDS for name in names)


def map_columns(names: Sequence[str], location: str) -> list[str]:
    """Return the field of each column; metadata fields keep their name, and unnamed columns are empty.

    Args:
        names: Names of the columns.
        location: Location of the names in errors.

    Raises:
        InvalidInput: there is no column of files, or two columns have the same meaning.
    """
    fields = [_FIELDS.get(name.strip().lower(), name.strip()) for name in names]
    first: dict[str, str] = {}
    for name, field in zip(names, fields, strict=True):
        if field and field in first:
            raise InvalidInput.at(
                location,
                f"The columns {first[field].strip()!r} and {name.strip()!r} have the same meaning.",
                "Remove or rename one of them.",
            )
        first[field] = name
    if "uri" not in first:
        raise InvalidInput.at(
            location,
            f"There is no column {', '.join(map(repr, FILE_COLUMNS[:-1]))} or {FILE_COLUMNS[-1]!r}.",
            "Name the columns in the first line.",
        )
    return fields


def row_fields(fields: Sequence[str], cells: Sequence[Any], location: str) -> dict[str, Any]:
    """Return the video of a row, as in ``POST /tasks``; empty if all cells are empty.

    Args:
        fields: Fields of the columns, from :func:`map_columns`.
        cells: Texts, or values of a typed table. A text of captions is separated by ``|``.
        location: Location of the row in errors.

    Raises:
        InvalidInput: a cell has no named column.
    """
    values = {
        field: value
        for field, cell in zip((*fields, *[""] * (len(cells) - len(fields))), cells, strict=False)
        if (value := cell.strip() if isinstance(cell, str) else cell) not in ("", None)
    }
    if "" in values:
        raise InvalidInput.at(
            location, "There are more cells than columns.", "Quote cells that contain the delimiter."
        )
    if not values:
        return {}
    video: dict[str, Any] = {
        "uri": str(values.pop("uri", "")),
        "captions": _captions(values.pop("captions", "")),
    }
    for field in ("id", "split"):
        if field in values:
            video[field] = str(values.pop(field))
    return video | ({"metadata": values} if values else {})


def _captions(cell: Any) -> list[str]:
    texts = cell if isinstance(cell, list) else str(cell).split("|")
    return [text for text in map(str, texts) if text.strip()]
