"""Validation of the videos of a manifest, merged by file."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from pydantic import ValidationError

from cinestrata_schemas.tasks import VideoSpec
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.ingestion_checks import storage_problem

__all__ = ["ManifestEntries"]

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
            line: Number of the line.
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
