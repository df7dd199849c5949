"""Tables of videos as text: comma, semicolon, tab or pipe between the cells."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from service.core.errors import InvalidInput
from service.tasks.manifests.manifest_lines import check_line_number
from service.tasks.manifests.table_columns import count_known_columns, map_columns, row_fields

__all__ = ["find_delimiter", "read_delimited_table"]

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
