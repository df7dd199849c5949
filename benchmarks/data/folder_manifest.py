"""Read manifests of video folders, in the formats of ``cinestrata ingest``.

Benchmarks use only the fields ``uri`` (a path inside the folder), ``captions``, ``id``, ``split`` and ``metadata``. The
service's limits on IDs and on the number of captions do not apply: videos in MSVD have up to 81 captions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from benchmarks.errors import ProtocolError
from service.core.errors import InvalidInput
from service.tasks.manifests.caption_tables import read_rows


class ManifestEntry(BaseModel):
    """One video in a manifest; all other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    uri: str = Field(min_length=1)
    captions: tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ...] = ()
    id: str | None = None
    split: Literal["train", "val", "test"] | None = None
    metadata: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The ID, or the path if there is none."""
        return self.id or self.uri


def read_manifest(path: Path) -> list[ManifestEntry]:
    """Read a manifest's videos in order. Lines for the same file become one video.

    Raises:
        ProtocolError: The manifest is invalid; the message names the line and the field.
    """
    entries: dict[str, ManifestEntry] = {}
    names: dict[str, str] = {}  # URI of each video
    try:
        with path.open("rb") as stream:
            for place, fields in read_rows(stream, path.name).rows:
                place = f"{path.parent}/{place}"
                try:
                    entry = ManifestEntry.model_validate(fields)
                except ValidationError as error:
                    first = error.errors()[0]
                    where = ".".join(map(str, first["loc"]))
                    raise ProtocolError(f"{place}: {where or 'the line'}: {first['msg']}") from error
                if earlier := entries.get(entry.uri):
                    entry = _merge(earlier, entry, place)
                if names.setdefault(entry.name, entry.uri) != entry.uri:
                    raise ProtocolError(f"{place}: {entry.name!r} occurs twice; use each ID once")
                entries[entry.uri] = entry
    except InvalidInput as error:
        raise ProtocolError(f"{path.parent}/{error.detail}") from error
    if not entries:
        raise ProtocolError(f"{path} has no videos; add one line per video")
    return list(entries.values())


def _merge(earlier: ManifestEntry, entry: ManifestEntry, location: str) -> ManifestEntry:
    """Merge two lines of a video: all captions, and for other fields the first line that has them."""
    for field in ("id", "split"):
        first, second = getattr(earlier, field), getattr(entry, field)
        if None not in (first, second) and first != second:
            raise ProtocolError(f"{location}: {field} of {entry.uri!r} differs from an earlier line")
    return ManifestEntry(
        uri=earlier.uri,
        captions=tuple(dict.fromkeys((*earlier.captions, *entry.captions))),
        id=earlier.id or entry.id,
        split=earlier.split or entry.split,
        metadata=earlier.metadata or entry.metadata,
    )
