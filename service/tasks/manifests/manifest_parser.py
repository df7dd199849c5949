"""Parser of manifests: lists of videos with captions as JSONL, CSV, Parquet or a spreadsheet.

A JSONL manifest has one video per line, with the fields of a video in ``POST /tasks``; other fields become metadata.
Tables have the columns of :mod:`service.tasks.manifests.table_columns`. The delimiter of a CSV follows from its header.
A file may have several lines: its captions are merged. URIs are paths relative to the folder of the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any, BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from service.core.errors import InvalidInput
from service.tasks.manifests.delimited_table import read_delimited_table
from service.tasks.manifests.manifest_entries import ManifestEntries
from service.tasks.manifests.manifest_lines import read_lines
from service.tasks.manifests.table_columns import FILE_COLUMNS, map_columns
from service.tasks.manifests.typed_table import TYPED_SUFFIXES, read_typed_table

__all__ = [
    "CAPTION_TABLE_NAMES",
    "MANIFEST_NAMES",
    "TYPED_MANIFEST_NAMES",
    "parse_manifest",
    "read_rows",
    "require_text_table",
]

CAPTION_TABLE_NAMES = ("captions.csv", "captions.tsv")  # found beside videos, they need not name all of them
MANIFEST_NAMES = ("manifest.jsonl", "manifest.csv", "manifest.tsv", *CAPTION_TABLE_NAMES)
TYPED_MANIFEST_NAMES = tuple(f"manifest{suffix}" for suffix in TYPED_SUFFIXES)

_DELIMITED_SUFFIXES = (".csv", ".tsv")


def require_text_table(name: str, field: str) -> None:
    """Check that a file that the service reads is no typed table, whose parsers do not bound the memory that it takes.

    Args:
        name: Name of the file.
        field: Field of the error.

    Raises:
        InvalidInput: the ending of the file is that of a Parquet file or a spreadsheet.
    """
    if PurePath(name).suffix.lower() in TYPED_SUFFIXES:
        raise InvalidInput.at(
            field,
            f"The service does not read {name!r}: the memory for a Parquet file or a spreadsheet is not bounded by its "
            "size.",
            "Convert it to CSV or JSONL.",
        )


def parse_manifest(
    stream: BinaryIO, name: str, encoding: str = "utf-8", *, typed_tables: bool = False
) -> list[VideoSpec]:
    """Parse the videos of a manifest.

    Args:
        stream: Content of the manifest.
        name: File name of the manifest; its ending selects the format, JSONL if it is unknown.
        encoding: Encoding of a text.
        typed_tables: Whether Parquet files and spreadsheets are read. A few kilobytes of them may fill the memory, so
            only a command reads them, for its own user.

    Raises:
        InvalidInput: a line is invalid; the error names the line. Or the file is a typed table that is not read.
    """
    if not typed_tables:
        require_text_table(name, name)
    entries = ManifestEntries(name)
    for line, fields in read_rows(stream, name, encoding):
        entries.add(line, fields)
    videos = entries.videos()
    if not videos:
        raise InvalidInput.at(name, "It lists no video.", "Write one video per line.")
    return videos


def read_rows(stream: BinaryIO, name: str, encoding: str = "utf-8") -> Iterator[tuple[int, Any]]:
    """Yield the line and the fields of each video, as in ``POST /tasks``; the fields are not validated.

    Args:
        stream: Content of the manifest.
        name: File name of the manifest; its ending selects the format, JSONL if it is unknown.
        encoding: Encoding of a text.

    Raises:
        InvalidInput: a line has another format; the error names the line.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix in TYPED_SUFFIXES:
        return read_typed_table(stream, name)
    lines = read_lines(stream, name, encoding)
    if suffix in _DELIMITED_SUFFIXES:
        return read_delimited_table(lines, name)
    return _read_objects(lines, name)


def _read_objects(lines: Iterable[str], name: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidInput.at(
                f"{name}:{number}", "The line is not JSON.", "Write one object per line."
            ) from None
        yield number, _move_unknown_to_metadata(_rename_aliases(fields, f"{name}:{number}"))


def _rename_aliases(fields: Any, location: str) -> Any:
    """Rename the fields of an object without ``uri`` as for the columns of a table."""
    if (
        not isinstance(fields, dict)
        or "uri" in fields
        or not {name.lower() for name in fields} & {*FILE_COLUMNS}
    ):
        return fields
    renamed = dict(zip(map_columns(list(fields), location), fields.values(), strict=True))
    if isinstance(renamed.get("captions"), str):
        renamed["captions"] = [renamed["captions"]]
    return renamed


def _move_unknown_to_metadata(fields: Any) -> Any:
    """Move fields that a video does not have to its metadata, as for columns of a table."""
    if not isinstance(fields, dict) or not isinstance(fields.get("metadata") or {}, dict):
        return fields  # refused by the validation
    unknown = {key: value for key, value in fields.items() if key not in VideoSpec.model_fields}
    known = {key: value for key, value in fields.items() if key in VideoSpec.model_fields}
    return known | ({"metadata": unknown | (fields.get("metadata") or {})} if unknown else {})
