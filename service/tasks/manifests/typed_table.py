"""Tables of videos with typed cells: Parquet and spreadsheets.

They are read with pandas, which is not a dependency of the project.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator
from typing import Any, BinaryIO

from service.core.errors import InvalidInput
from service.tasks.manifests.table_columns import map_columns, row_fields

__all__ = ["TYPED_SUFFIXES", "read_typed_table"]

TYPED_SUFFIXES = (".parquet", ".xlsx", ".xls", ".ods")


def read_typed_table(stream: BinaryIO, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the row number and the fields of the video of each row of a Parquet file or of a first sheet.

    The rows of a Parquet file are counted from 1, and the rows of a sheet like the spreadsheet does.

    Args:
        stream: Content of the file.
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
