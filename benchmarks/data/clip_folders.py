"""Read folders of clips: each subfolder with a manifest, in a format of ``cinestrata ingest``, is a domain.

Benchmarks use only the fields ``uri`` (a path inside the folder), ``captions``, ``id``, ``split`` and ``metadata``. The
service's limits on IDs and on the number of captions do not apply: videos in MSVD have up to 81 captions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from benchmarks.data.frame_sources import FileFrames
from benchmarks.data.source_tasks import SourceTask, SourceVideo, Split
from benchmarks.errors import ProtocolError, abbreviate
from service.core.errors import InvalidInput
from service.tasks.manifests.caption_tables import read_rows
from service.tasks.manifests.folder_videos import find_manifest

_HELD_OUT_FRACTION = 5  # one in this many clips is held out
_MIN_HELD_OUT = 2


class ManifestEntry(BaseModel):
    """One video in a manifest; all other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    uri: str = Field(min_length=1)
    captions: tuple[Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], ...] = ()
    id: str | None = None
    split: Split | None = None
    metadata: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The ID, or the path if there is none."""
        return self.id or self.uri


def find_domains(folder: Path) -> list[tuple[Path, Path]]:
    """Find the subfolders with a manifest, and their manifests, in order of their names."""
    return [(path, manifest) for path in sorted(folder.glob("*/")) if (manifest := find_manifest(path))]


def read_manifest(path: Path) -> list[ManifestEntry]:
    """Read a manifest's videos in order, one per file; raise ProtocolError, which names the line and the field."""
    entries: dict[str, ManifestEntry] = {}
    names: dict[str, str] = {}  # URI of each video
    try:
        with path.open("rb") as stream:
            for location, fields in read_rows(stream, path.name).rows:
                location = f"{path.parent}/{location}"
                try:
                    entry = ManifestEntry.model_validate(fields)
                except ValidationError as error:
                    first = error.errors()[0]
                    where = ".".join(map(str, first["loc"]))
                    raise ProtocolError(f"{location}: {where or 'the line'}: {first['msg']}") from error
                if earlier := entries.get(entry.uri):
                    entry = _merge(earlier, entry, location)
                if names.setdefault(entry.name, entry.uri) != entry.uri:
                    raise ProtocolError(f"{location}: {entry.name!r} occurs twice; use each ID once")
                entries[entry.uri] = entry
    except InvalidInput as error:
        raise ProtocolError(f"{path.parent}/{error.detail}") from error
    if not entries:
        raise ProtocolError(f"{path} has no videos; add one line per video")
    return list(entries.values())


def _merge(earlier: ManifestEntry, entry: ManifestEntry, location: str) -> ManifestEntry:
    """Merge two lines of a video: all captions, and for other fields the first line that has them."""
    merged = {"captions": tuple(dict.fromkeys((*earlier.captions, *entry.captions)))}
    for field in ("id", "split", "metadata"):
        first, second = getattr(earlier, field), getattr(entry, field)
        if field != "metadata" and None not in (first, second) and first != second:
            raise ProtocolError(f"{location}: {field} of {entry.uri!r} differs from an earlier line")
        merged[field] = first or second
    return earlier.model_copy(update=merged)


def read_clip_domains(folder: Path) -> list[SourceTask]:
    """Read a folder's domains in order of their names; without any split, a fifth is held out. Raise ProtocolError."""
    domains = find_domains(folder)
    if not domains:
        raise ProtocolError(
            f"no subfolder of {folder} has a manifest.jsonl or manifest.csv; each subfolder with a manifest is a domain"
        )
    return [_read_domain(path, manifest) for path, manifest in domains]


def select_held_out(uris: Sequence[str]) -> set[str]:
    """Select the test clips of a manifest without splits by URI: the first fifth in SHA-1 order, at least 2."""
    ranked = sorted(uris, key=lambda uri: hashlib.sha1(uri.encode(), usedforsecurity=False).hexdigest())
    return set(ranked[: max(_MIN_HELD_OUT, len(uris) // _HELD_OUT_FRACTION)])


def _read_domain(folder: Path, manifest: Path) -> SourceTask:
    entries = read_manifest(manifest)
    domain = read_task(folder, manifest, entries)
    if not any(entry.split for entry in entries):
        held_out = select_held_out([entry.uri for entry in entries])
        names = {entry.name for entry in entries if entry.uri in held_out}
        videos = (replace(video, split="test") if video.id in names else video for video in domain.videos)
        domain = replace(domain, videos=tuple(videos))
    for split, name in (("train", "training"), ("test", "test")):
        if not any(video.split == split and video.captions for video in domain.videos):
            raise ProtocolError(
                f'{manifest} has no {name} clip with a caption; set "split" to "train" or "test" for each clip, or '
                f"list at least {_MIN_HELD_OUT + 1} clips without any split"
            )
    return domain


def read_task(folder: Path, manifest: Path, entries: Sequence[ManifestEntry]) -> SourceTask:
    """Make a task of a folder, where captioned videos are for training by default; raise ProtocolError."""
    missing = [entry.uri for entry in entries if not (folder / entry.uri).is_file()]
    if missing:
        raise ProtocolError(
            f"{manifest} names {len(missing)} missing files (of {len(entries)}): {abbreviate(missing)}. Paths are "
            "relative to the folder of the manifest"
        )
    videos = (
        SourceVideo(
            e.name, e.captions, e.split or ("train" if e.captions else None), FileFrames(folder / e.uri)
        )
        for e in entries
    )
    return SourceTask(folder.name, folder.name, tuple(videos))
