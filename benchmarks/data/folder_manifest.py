"""Manifests of folders of videos, as ``cinestrata ingest`` takes them: ``manifest.jsonl`` or ``manifest.csv``.

Only what a measurement needs is read: ``uri`` (a path inside the folder), ``captions``, ``id`` and ``split``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from benchmarks.errors import ProtocolError

__all__ = ["MANIFEST_NAMES", "ManifestEntry", "find_manifest", "read_manifest"]

MANIFEST_NAMES = ("manifest.jsonl", "manifest.csv")


class ManifestEntry(BaseModel):
    """One video; fields that are not listed here are the user's own."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    uri: str = Field(min_length=1)
    captions: tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ...] = ()
    id: str | None = None
    split: Literal["train", "val", "test"] | None = None

    @property
    def name(self) -> str:
        """The id, or the path of a video that has none."""
        return self.id or self.uri


def find_manifest(folder: Path) -> Path | None:
    """The manifest of a folder, if it has one."""
    return next((folder / name for name in MANIFEST_NAMES if (folder / name).is_file()), None)


def read_manifest(path: Path) -> list[ManifestEntry]:
    """The videos that a manifest names, in its order.

    Raises:
        ProtocolError: naming the line and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from error
    found: dict[str, ManifestEntry] = {}
    for number, fields in (_csv if path.suffix == ".csv" else _jsonl)(text, path):
        try:
            entry = ManifestEntry.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ProtocolError(f"{path}:{number}: {where or 'the line'}: {first['msg']}") from error
        if entry.name in found:
            raise ProtocolError(f"{path}:{number}: {entry.name!r} is named twice")
        found[entry.name] = entry
    if not found:
        raise ProtocolError(f"{path} names no video; write one a line")
    return list(found.values())


def _jsonl(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise ProtocolError(
                    f"{path}:{number}: the line is not JSON; write one object a line"
                ) from error


def _csv(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """Columns ``uri``, ``captions`` (separated by ``|``), ``id``, ``split``; a video may fill several rows."""
    reader = csv.DictReader(text.splitlines(keepends=True))
    if "uri" not in (reader.fieldnames or ()):
        raise ProtocolError(f"{path}:1: there is no column 'uri'; name the columns in the first line")
    videos: dict[str, tuple[int, dict[str, Any]]] = {}
    for row in reader:
        cells = {key: (value or "").strip() for key, value in row.items() if isinstance(value, str)}
        captions = [c for c in (cells.get("captions") or cells.get("caption") or "").split("|") if c.strip()]
        fields = {key: cells[key] for key in ("uri", "id", "split") if cells.get(key)}
        _, known = videos.setdefault(cells["uri"], (reader.line_num, {"captions": [], **fields}))
        known["captions"] += captions
    yield from videos.values()
