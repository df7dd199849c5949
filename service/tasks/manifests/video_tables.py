"""Tables of videos: delimited texts, Parquet and spreadsheets, and the fields of a video that their columns contain.

A column of files is named ``uri``, ``file``, ``filename``, ``path`` or ``video``; a column of captions ``captions``,
``caption``, ``text`` or ``description``. ``id`` and ``split`` are fields of a video; all other columns are metadata.
The case of these names has no meaning. Tables with typed cells are read with pandas, which is not a dependency of the
project.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO

from service.core.errors import InvalidInput
from service.tasks.manifests.manifest_lines import check_line_number

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


_DELIMITERS = (",", ";", "\t", "|")


def read_delimited_table(lines: Iterable[str], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line and the fields of the video of each row. The header decides the delimiter.

    Args:
        lines: Lines of the file with their ends.
        name: Name of the file in errors.

    Raises:
        InvalidInput: the header or a row is invalid; the error names the line.
    """
    lines = _limit(chain.from_iterable(map(_split_returns, lines)), name)
    blank = 0
    header = ""
    for header in lines:
        if header.strip():
            break
        blank += 1
    if not header.strip():
        return
    # A quoted cell that never ends is refused at the field limit of the reader (131,072 characters).
    reader = csv.reader(chain([header], lines), delimiter=find_delimiter(header), strict=True)
    fields: list[str] = []
    number = blank + 1
    try:
        for cells in reader:
            location = f"{name}:{number}"
            if not fields:
                fields = map_columns(cells, location)
            elif video := row_fields(fields, cells, location):
                yield number, video
            number = blank + reader.line_num + 1
    except csv.Error as error:
        raise InvalidInput.at(
            f"{name}:{number}",
            f"The row that begins here is not a row of a table: {error}.",
            "Check its quotes.",
        ) from None


def find_delimiter(header: str) -> str:
    """Return the delimiter that gives the most known columns; of several the first.

    Args:
        header: First line of a table that is not blank.
    """

    def known(delimiter: str) -> int:
        try:
            return count_known_columns(next(csv.reader([header], delimiter=delimiter)))
        except csv.Error:
            return 0

    return max(_DELIMITERS, key=known)


def _limit(lines: Iterable[str], name: str) -> Iterator[str]:
    """Yield lines up to their maximum number, of which one line of the file may have millions."""
    for number, line in enumerate(lines, 1):
        check_line_number(number, name)
        yield line


def _split_returns(line: str) -> Iterable[str]:
    """Split a line at carriage returns, which end the lines of some spreadsheets."""
    return io.StringIO(line, newline="") if "\r" in line[:-2] else (line,)


TYPED_SUFFIXES = (".parquet", ".xlsx", ".xls", ".ods")


def read_typed_table(stream: BinaryIO, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the row number and the fields of the video of each row of a Parquet file or of a first sheet.

    The rows of a Parquet file are counted from 1, and the rows of a sheet like the spreadsheet does.

    Args:
        name: Name of the file; its ending selects the format.

    Raises:
        InvalidInput: a package is not installed, or the file is damaged, or a row is invalid.
    """
    is_parquet = name.lower().endswith(".parquet")
    try:
        pandas = importlib.import_module("pandas")
        frame = pandas.read_parquet(stream) if is_parquet else pandas.read_excel(stream, dtype=object)
    except ImportError:
        packages = "pandas pyarrow" if is_parquet else "pandas openpyxl"
        raise InvalidInput.at(
            name,
            f"Files of this kind are read with {packages.replace(' ', ' and ')}, which are not installed.",
            f"Install them (pip install {packages}), or save the table as CSV.",
        ) from None
    except Exception as error:  # parsers of untrusted bytes raise exceptions of any type
        raise InvalidInput.at(
            name, f"The table cannot be read ({type(error).__name__}).", "Save it again, or as CSV."
        ) from error
    fields = map_columns([str(column) for column in frame.columns], name if is_parquet else f"{name}:1")
    columns = [frame.iloc[:, index].tolist() for index in range(len(fields))]
    for number, cells in enumerate(zip(*columns, strict=True), 1 if is_parquet else 2):
        if video := row_fields(fields, [_plain(cell) for cell in cells], f"{name}:{number}"):
            yield number, video


def _plain(cell: Any) -> Any:
    """Return a cell as plain JSON; a missing value is None."""
    if cell is None or isinstance(cell, str | bool | int):
        return cell
    if isinstance(cell, float):
        return None if math.isnan(cell) else cell
    if str(cell) in ("NaT", "<NA>"):
        return None
    return json.loads(json.dumps(cell, default=_plain_object))


def _plain_object(value: Any) -> Any:
    for method in ("tolist", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    return str(value)
