"""Manifests of folders of videos, as ``cinestrata ingest`` takes them: ``manifest.jsonl`` or ``manifest.csv``.

Benchmarks use the fields ``uri`` (a path inside the folder), ``captions``, ``id`` and ``split`` only.
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
    """One video of a manifest; all other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    uri: str = Field(min_length=1)
    captions: tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ...] = ()
    id: str | None = None
    split: Literal["train", "val", "test"] | None = None

    @property
    def name(self) -> str:
        """The id, or the path of a video without an id."""
        return self.id or self.uri


def find_manifest(folder: Path) -> Path | None:
    """Path of the manifest in a folder; None if there is none."""
    return next((folder / name for name in MANIFEST_NAMES if (folder / name).is_file()), None)


def read_manifest(path: Path) -> list[ManifestEntry]:
    """Read the videos of a manifest in order.

    Raises:
        ProtocolError: The manifest is invalid; the message names the line and the field.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from error
    entries: dict[str, ManifestEntry] = {}
    for number, fields in (_csv if path.suffix == ".csv" else _jsonl)(text, path):
        try:
            entry = ManifestEntry.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ProtocolError(f"{path}:{number}: {where or 'the line'}: {first['msg']}") from error
        if entry.name in entries:
            raise ProtocolError(f"{path}:{number}: {entry.name!r} occurs twice; use each id once")
        entries[entry.name] = entry
    if not entries:
        raise ProtocolError(f"{path} has no videos; add one line per video")
    return list(entries.values())


def _jsonl(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise ProtocolError(
                    f"{path}:{number}: the line is not JSON; write one object per line"
                ) from error


def _csv(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    """Read the columns ``uri``, ``captions`` (separated by ``|``), ``id`` and ``split``; rows of a video are joined."""
    reader = csv.DictReader(text.splitlines(keepends=True))
    if "uri" not in (reader.fieldnames or ()):
        raise ProtocolError(f"{path}:1: the column 'uri' is missing; the first line must name the columns")
    videos: dict[str, tuple[int, dict[str, Any]]] = {}
    for row in reader:
        cells = {key: (value or "").strip() for key, value in row.items() if isinstance(value, str)}
        captions = [c for c in (cells.get("captions") or cells.get("caption") or "").split("|") if c.strip()]
        fields = {key: cells[key] for key in ("uri", "id", "split") if cells.get(key)}
        _, video = videos.setdefault(cells["uri"], (reader.line_num, {"captions": [], **fields}))
        video["captions"] += captions
    yield from videos.values()
