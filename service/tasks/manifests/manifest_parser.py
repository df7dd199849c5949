"""Parse manifests and caption tables in the formats of :mod:`service.tasks.manifests.caption_formats`.

The content selects the format, not the file name: JSON, JSON lines, or a delimited table with the columns described in
:mod:`service.tasks.manifests.video_tables`. If a video has several rows, their captions are merged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO

from pydantic import ValidationError

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.videos import Cue
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.ingestion_checks import storage_problem
from service.tasks.manifests.caption_formats import Rows, read_document_rows, recognize
from service.tasks.manifests.subtitle_files import SPEECH_COLUMNS
from service.tasks.manifests.text_files import (
    PeekedText,
    check_encoding,
    parse_json,
    read_document,
    read_lines,
)
from service.tasks.manifests.video_tables import (
    TYPED_SUFFIXES,
    find_delimiter,
    has_files,
    is_lsmdc,
    read_delimited_table,
    split_header,
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_CUES = 1_000_000  # over all videos
_MAX_VALUES = 64  # of a data set's column for one video
_MAX_METADATA_BYTES = 64 * 1024**2  # over all videos, as in the body of a JSON request


@dataclass(slots=True)
class _Entry:
    """The rows of a video so far.

    Captions and transcript texts are dictionary keys, so that merging a row does not copy the previous ones.
    """

    location: str
    video: VideoSpec  # the first row, with what later ones add
    captions: dict[str, None]
    transcript: dict[tuple[float, float, str], Cue]


class ManifestEntries:
    """Collects videos from manifests, in the order of their first rows. Rows for the same file become one video."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._metadata_bytes = 0
        self._cues = 0

    def add(self, location: str, fields: Any, *, is_partial: bool = False) -> None:
        """Add a row's video.

        Args:
            is_partial: Whether the row is one annotation in a data set, such as one worker's. Metadata that differ from
                those of a previous row become lists.

        Raises:
            InvalidInput: A field is invalid, a file has too many captions, a row contradicts a previous one, or the
                rows name more videos than a task may have.
        """
        try:
            video = VideoSpec.model_validate(fields)
        except ValidationError as error:
            first = InvalidInput.from_pydantic(error.errors()).errors[0]
            raise InvalidInput.at(
                f"{location}.{first.field}", first.message, "Write it as in the body of a new task."
            ) from None
        if _CONTROL.search(video.uri):
            raise InvalidInput.at(f"{location}.uri", "The path contains a control character.", "Remove it.")
        texts = {"captions": video.captions, "transcript": [cue.text for cue in video.transcript]}
        for field, value in {**texts, "metadata": video.metadata or {}}.items():
            if problem := storage_problem(value):
                raise InvalidInput.at(f"{location}.{field}", problem, "Use plain JSON values only.")
        self._check_metadata(location, video.metadata)
        self._cues += len(video.transcript)
        if self._cues > _MAX_CUES:
            message = f"The transcripts in the manifest have more than {_MAX_CUES} texts."
            raise InvalidInput.at(f"{location}.transcript", message, "Split the manifest.")
        uri = video.uri.removeprefix("./") or video.uri
        cues = {(cue.start, cue.end, cue.text): cue for cue in video.transcript}
        entry = _Entry(location, video, dict.fromkeys(video.captions), cues)
        if earlier := self._entries.get(uri):
            self._merge(uri, earlier, entry, is_partial)
            entry = earlier
        elif len(self._entries) >= (limit := request_limits.MAX_VIDEOS_PER_TASK):
            message = f"The previous rows name {limit} other videos, which is the limit."
            hint = f"Post at most {limit} videos, and append the others to the domain."
            raise InvalidInput.at(location, message, hint)
        if len(entry.captions) > request_limits.MAX_CAPTIONS:
            message = f"{uri!r} has more than {request_limits.MAX_CAPTIONS} captions."
            raise InvalidInput.at(location, message, "Remove some of them.")
        self._entries[uri] = entry

    def _check_metadata(self, location: str, metadata: dict[str, Any] | None) -> None:
        """Limit the metadata per video and in total: parsed JSON takes up to 20 times as much memory as text."""
        text = json.dumps(metadata, ensure_ascii=False) if metadata else ""
        size = len(text.encode())
        self._metadata_bytes += size
        if size > request_limits.MAX_METADATA_BYTES:
            message = f"It takes {size} bytes."
            hint = f"Keep it below {request_limits.MAX_METADATA_BYTES} bytes as JSON."
            raise InvalidInput.at(f"{location}.metadata", message, hint)
        if self._metadata_bytes > _MAX_METADATA_BYTES:
            message = f"The metadata in the manifest takes more than {_MAX_METADATA_BYTES} bytes."
            raise InvalidInput.at(f"{location}.metadata", message, "Split the manifest.")

    def videos(self) -> list[VideoSpec]:
        """Build the videos."""
        for uri, entry in self._entries.items():
            entry.video.uri, entry.video.captions = uri, list(entry.captions)
            if entry.transcript:
                entry.video.transcript = list(entry.transcript.values())
        return [entry.video for entry in self._entries.values()]

    def _merge(self, uri: str, earlier: _Entry, entry: _Entry, is_partial: bool) -> None:
        """Merge a row into the previous rows of its video."""
        first, added = earlier.video, entry.video
        for field in ("id", "split"):
            self._check_equal(uri, field, getattr(first, field), getattr(added, field), earlier, entry)
        first.id, first.split = first.id or added.id, first.split or added.split
        first.metadata = added.metadata if first.metadata is None else first.metadata
        for key, value in (added.metadata or {}).items():
            before = (first.metadata or {}).setdefault(key, value)
            values = before if isinstance(before, list) else [before]
            if not is_partial or not isinstance(value, str):
                self._check_equal(uri, key, before, value, earlier, entry)
            elif first.metadata and value not in values and len(values) < _MAX_VALUES:
                first.metadata[key] = [*values, value]
        earlier.captions.update(entry.captions)
        earlier.transcript.update(entry.transcript)

    def _check_equal(
        self, uri: str, field: str, first: object, second: object, earlier: _Entry, entry: _Entry
    ) -> None:
        if None not in (first, second) and first != second:
            message = f"{field[:80]!r} of {uri!r} differs from its row at {earlier.location}."
            hint = "Repeat the same ID, split and metadata, or omit them."
            raise InvalidInput.at(entry.location, message, hint)


CAPTION_TABLE_NAMES = ("captions.csv", "captions.tsv")  # next to videos; they need not name all of them
MANIFEST_NAMES = ("manifest.jsonl", "manifest.csv", "manifest.tsv", *CAPTION_TABLE_NAMES)
TYPED_MANIFEST_NAMES = tuple(f"manifest{suffix}" for suffix in TYPED_SUFFIXES)
FULL_MANIFEST_NAMES = (*MANIFEST_NAMES[:3], *TYPED_MANIFEST_NAMES)  # these list all videos of their folder


def require_text_table(name: str, field: str) -> None:
    """Refuse typed tables, whose parsers use unbounded memory; raise InvalidInput."""
    if PurePath(name).suffix.lower() in TYPED_SUFFIXES:
        reason = "the memory for a Parquet file or spreadsheet is not bounded by its size"
        raise InvalidInput.at(
            field, f"Cinestrata doesn't read {name!r}: {reason}.", "Convert it to CSV or JSONL."
        )


@dataclass(frozen=True)
class CaptionTableRows:
    """The rows of a manifest or caption table.

    Attributes:
        rows: Location and unvalidated fields of each video, as in ``POST /tasks``.
        is_partial: Whether the table may list videos that are missing, as data sets do.
        is_description: Whether the file only describes a data set and has no videos.
    """

    format: str
    rows: Rows
    is_partial: bool = False
    delimiter: str | None = None
    is_description: bool = False


def read_rows(stream: BinaryIO, name: str, encoding: str = "utf-8") -> CaptionTableRows:
    """Recognize a manifest's format and read its rows; raise InvalidInput."""
    require_text_table(name, name)
    check_encoding(encoding)
    text = PeekedText(stream, name)
    line = text.peek_line()
    if line.lstrip()[:1] not in (b"{", b"["):
        return _read_table(text, line, name, encoding)
    first = _parse_object(line.decode(encoding, "replace")) if line.lstrip()[:1] == b"{" else None
    known = None if first is None else recognize(first, name)
    if known is None or known.layout != "objects":
        document = read_document(text, name, encoding)
        known = recognize(document, name)
        rows = read_document_rows(known, document, name)
        first = document[0] if isinstance(document, list) else document
    else:
        lines = _parse_lines(read_lines(text, name, encoding), name)
        rows = known.read(lines, name) if known.read else iter(())
    is_partial = known.is_partial or (isinstance(first, dict) and not has_files(first))
    return CaptionTableRows(known.name, rows, is_partial, is_description=known.read is None)


def _read_table(text: PeekedText, line: bytes, name: str, encoding: str) -> CaptionTableRows:
    header = next(iter(line.decode("utf-8", "replace").splitlines()), "")
    rows = read_delimited_table(read_lines(text, name, encoding), name)
    if is_lsmdc(header):
        return CaptionTableRows("LSMDC", rows, True, "\t")
    delimiter = find_delimiter(header)
    if split_header(header.strip(), delimiter) == SPEECH_COLUMNS:
        return CaptionTableRows("speech recognized by Whisper", iter(()), is_description=True)
    is_partial = not has_files(split_header(header, delimiter))
    return CaptionTableRows("table", rows, is_partial, delimiter)


def _parse_object(line: str) -> dict[str, Any] | None:
    """Parse the object on a line; None if the line is only part of a JSON document."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse_lines(lines: Iterable[str], name: str) -> Rows:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{name}:{number}", parse_json(line, name, number)
