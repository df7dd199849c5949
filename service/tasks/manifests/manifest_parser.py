"""Parser of manifests: lists of videos with captions as JSONL, CSV, Parquet or a spreadsheet.

A JSONL manifest has one video per line, with the fields of a video in ``POST /tasks``; other fields become metadata.
Tables have the columns of :mod:`service.tasks.manifests.video_tables`. The delimiter of a CSV follows from its header.
A file may have several lines: its captions are merged. URIs are paths relative to the folder of the manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple

from pydantic import ValidationError

from cinestrata_schemas.tasks import VideoSpec
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.ingestion_checks import storage_problem
from service.tasks.manifests.manifest_lines import read_lines
from service.tasks.manifests.video_tables import (
    FILE_COLUMNS,
    TYPED_SUFFIXES,
    map_columns,
    read_delimited_table,
    read_typed_table,
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_METADATA_BYTES = 64 * 1024**2  # of all videos, as in the body of a JSON request


class _Entry(NamedTuple):
    """Fields of a video; much smaller than a :class:`VideoSpec`, since a manifest may have millions of lines."""

    line: int
    captions: tuple[str, ...]
    id: str | None
    split: str | None
    metadata: dict[str, Any] | None


class ManifestEntries:
    """Videos of a manifest in the order of their first line. Lines of the same file become one video.

    Args:
        name: Name of the manifest in errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._entries: dict[str, _Entry] = {}
        self._metadata_bytes = 0

    def add(self, line: int, fields: Any) -> None:
        """Add the video of a line.

        Args:
            fields: Fields of a video as in ``POST /tasks``.

        Raises:
            InvalidInput: a field is invalid, a file has too many captions, its line contradicts an earlier line, or
                the lines name more videos than a task may have.
        """
        location = f"{self._name}:{line}"
        try:
            video = VideoSpec.model_validate(fields)
        except ValidationError as error:
            first = InvalidInput.from_pydantic(error.errors()).errors[0]
            raise InvalidInput.at(
                f"{location}.{first.field}", first.message, "Write it as in the body of a new task."
            ) from None
        if _CONTROL.search(video.uri):
            raise InvalidInput.at(f"{location}.uri", "The path contains a control character.", "Remove it.")
        for field, value in (("captions", video.captions), ("metadata", video.metadata or {})):
            if problem := storage_problem(value):
                raise InvalidInput.at(f"{location}.{field}", problem, "Keep to plain JSON values.")
        self._check_metadata(location, video.metadata)
        uri = video.uri.removeprefix("./") or video.uri
        entry = _Entry(line, tuple(video.captions), video.id, video.split, video.metadata)
        if earlier := self._entries.get(uri):
            entry = self._merge(uri, earlier, entry)
        elif len(self._entries) >= request_limits.MAX_VIDEOS_PER_TASK:
            limit = request_limits.MAX_VIDEOS_PER_TASK
            raise InvalidInput.at(
                self._name,
                f"It lists more than {limit} videos; line {line} names a further file.",
                f"Post {limit} videos at most, and append the others to the domain.",
            )
        if len(entry.captions) > request_limits.MAX_CAPTIONS:
            raise InvalidInput.at(
                location,
                f"{uri!r} has more than {request_limits.MAX_CAPTIONS} captions.",
                "Remove some of them.",
            )
        self._entries[uri] = entry

    def _check_metadata(self, location: str, metadata: dict[str, Any] | None) -> None:
        """Bound the metadata of a video and of all videos: parsed JSON takes up to 20 times as much memory as text."""
        text = json.dumps(metadata, ensure_ascii=False) if metadata else ""
        size = len(text.encode())
        self._metadata_bytes += size
        if size > request_limits.MAX_METADATA_BYTES:
            message = f"It takes {size} bytes."
            hint = f"Keep it below {request_limits.MAX_METADATA_BYTES} bytes as JSON."
            raise InvalidInput.at(f"{location}.metadata", message, hint)
        if self._metadata_bytes > _MAX_METADATA_BYTES:
            raise InvalidInput.at(
                f"{location}.metadata",
                f"The metadata of the manifest takes more than {_MAX_METADATA_BYTES} bytes.",
                "Split the manifest.",
            )

    def videos(self) -> list[VideoSpec]:
        """Return the videos."""
        return [_make_video(uri, entry) for uri, entry in self._entries.items()]

    def _merge(self, uri: str, earlier: _Entry, entry: _Entry) -> _Entry:
        for field in ("id", "split"):
            self._check_equal(uri, field, getattr(earlier, field), getattr(entry, field), earlier, entry)
        metadata = dict(earlier.metadata or {})
        for key, value in (entry.metadata or {}).items():
            self._check_equal(uri, key, metadata.setdefault(key, value), value, earlier, entry)
        return _Entry(
            earlier.line,
            tuple(dict.fromkeys((*earlier.captions, *entry.captions))),
            earlier.id or entry.id,
            earlier.split or entry.split,
            metadata or None,
        )

    def _check_equal(
        self, uri: str, field: str, first: object, second: object, earlier: _Entry, entry: _Entry
    ) -> None:
        if None not in (first, second) and first != second:
            raise InvalidInput.at(
                f"{self._name}:{entry.line}",
                f"{field[:80]!r} of {uri!r} differs from its row in line {earlier.line}.",
                "Repeat the same id, split and metadata, or omit them.",
            )


def _make_video(uri: str, entry: _Entry) -> VideoSpec:
    """Return the video of an entry; `ManifestEntries.add` has validated its fields."""
    fields: dict[str, Any] = {key: value for key, value in entry._asdict().items() if key != "line" and value}
    return VideoSpec.model_construct(uri=uri, **fields | {"captions": list(entry.captions)})


CAPTION_TABLE_NAMES = ("captions.csv", "captions.tsv")  # found beside videos, they need not name all of them
MANIFEST_NAMES = ("manifest.jsonl", "manifest.csv", "manifest.tsv", *CAPTION_TABLE_NAMES)
TYPED_MANIFEST_NAMES = tuple(f"manifest{suffix}" for suffix in TYPED_SUFFIXES)

_DELIMITED_SUFFIXES = (".csv", ".tsv")


def require_text_table(name: str, field: str) -> None:
    """Check that a file that the service reads is no typed table, whose parsers do not bound the memory that it takes.

    Args:
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
        name: File name of the manifest; its ending selects the format, JSONL if it is unknown.
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
