"""Parser of the manifests of archives: ``manifest.jsonl`` and ``manifest.csv``.

``manifest.jsonl`` has one video per line, with the fields of a video in ``POST /tasks``; other fields become metadata.
``manifest.csv`` has the columns ``uri``, ``captions`` (several are separated by ``|``), ``id`` and ``split``; other
columns become metadata. The columns may also be named ``file`` and ``caption``. A video may have several rows, with one
caption each. URIs are paths inside the archive, relative to the folder of the manifest.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from service.core.errors import InvalidInput
from service.core.schemas import VideoSpec

__all__ = ["MANIFEST_NAMES", "parse_manifest"]

MANIFEST_NAMES = ("manifest.jsonl", "manifest.csv")


def parse_manifest(raw: bytes, name: str) -> list[VideoSpec]:
    """Parse the videos of a manifest.

    Args:
        raw: Content of the manifest, UTF-8.
        name: File name of the manifest; its ending selects CSV or JSONL.

    Raises:
        InvalidInput: a line is invalid; the error names the line.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput.at(name, f"Byte {error.start} is not UTF-8.", "Save it as UTF-8.") from None
    videos = list((_parse_csv if name.endswith(".csv") else _parse_jsonl)(text, name))
    if not videos:
        raise InvalidInput.at(name, "It lists no video.", "Write one video per line.")
    return videos


def _parse_jsonl(text: str, name: str) -> Iterator[VideoSpec]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidInput.at(
                f"{name}:{number}", "The line is not JSON.", "Write one object per line."
            ) from None
        yield _validate_video(_move_unknown_to_metadata(fields), f"{name}:{number}")


def _move_unknown_to_metadata(fields: Any) -> Any:
    """Move fields that a video does not have to its metadata, as for columns of a CSV."""
    if not isinstance(fields, dict) or not isinstance(fields.get("metadata") or {}, dict):
        return fields  # refused by the validation
    unknown = {key: value for key, value in fields.items() if key not in VideoSpec.model_fields}
    known = {key: value for key, value in fields.items() if key in VideoSpec.model_fields}
    return known | ({"metadata": unknown | (fields.get("metadata") or {})} if unknown else {})


def _parse_csv(text: str, name: str) -> Iterator[VideoSpec]:
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", strict=True)
    merged: dict[str, dict[str, Any]] = {}
    lines: dict[str, int] = {}
    try:
        names = [cell.strip() for cell in reader.fieldnames or ()]
        if not {"uri", "file"} & set(names):
            raise InvalidInput.at(
                f"{name}:1", "There is no column 'uri' or 'file'.", "Name the columns in the first line."
            )
        reader.fieldnames = ["uri" if cell == "file" and "uri" not in names else cell for cell in names]
        for row in reader:
            if "" in row:
                raise InvalidInput.at(
                    f"{name}:{reader.line_num}", "There are more cells than columns.", "Quote commas."
                )
            fields = _csv_fields(row)
            first = merged.setdefault(fields["uri"], fields)
            lines.setdefault(fields["uri"], reader.line_num)
            if first is not fields:
                first["captions"] += fields.pop("captions")
                if any(first.get(key) != value for key, value in fields.items()):
                    raise InvalidInput.at(
                        f"{name}:{reader.line_num}",
                        f"{fields['uri']!r} differs from its row in line {lines[fields['uri']]}.",
                        "Repeat the same id, split and metadata, or remove the row.",
                    )
    except csv.Error as error:
        raise InvalidInput.at(
            f"{name}:{reader.line_num}", f"Not a CSV line: {error}.", "Quote the cells."
        ) from None
    for uri, fields in merged.items():
        yield _validate_video(fields, f"{name}:{lines[uri]}")


def _csv_fields(row: dict[str, str | None]) -> dict[str, Any]:
    cells = {key: (value or "").strip() for key, value in row.items()}
    captions = cells.pop("captions", "") or cells.pop("caption", "")
    fields: dict[str, Any] = {
        "uri": cells.pop("uri"),
        "captions": [c for c in captions.split("|") if c.strip()],
    }
    for key in ("id", "split"):
        if value := cells.pop(key, ""):
            fields[key] = value
    metadata = {key: value for key, value in cells.items() if value and key != "caption"}
    return fields | ({"metadata": metadata} if metadata else {})


def _validate_video(fields: Any, location: str) -> VideoSpec:
    try:
        return VideoSpec.model_validate(fields)
    except ValidationError as error:
        first = InvalidInput.from_pydantic(error.errors()).errors[0]
        raise InvalidInput.at(
            f"{location}.{first.field}", first.message, "Write it as in POST /tasks."
        ) from None
