"""Unpack uploaded archives: zip or tar(.gz), with a manifest or with sidecar files.

Archives are untrusted. Only plain files that the manifest lists, or without a manifest, files with video extensions,
are written, each to a validated path. Typed tables are not read as manifests: their parsers use unbounded memory.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from cinestrata_schemas.tasks import VideoSpec
from index.files.durable_files import sync
from media.sources.media_source import is_source_uri
from service.core import request_limits
from service.core.errors import CinestrataError, FieldError, InvalidInput, TooLarge, Unavailable
from service.core.settings import settings
from service.storage.library_paths import UPLOAD_SCHEME
from service.tasks.manifests.caption_tables import CaptionTables, find_tables
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES, require_text_table
from service.tasks.manifests.side_files import (
    SideFileNames,
    SideFiles,
    add_subtitles,
    read_sidecars,
    side_file_names,
)
from service.tasks.manifests.video_files import find_videos
from service.tasks.uploads.archive_reader import (
    Archive,
    ArchiveMember,
    archive_too_large,
    invalid_archive,
    list_members,
    open_archive,
    safe_path,
)
from service.tasks.uploads.uploaded_videos import remove_upload

_MAX_MANIFEST_BYTES = 32 * 1024**2  # also for all sidecar files together
_MANIFEST_HINT = "Put one manifest.jsonl or manifest.csv at the top level."
_MAX_LISTED = 20
_BLOCK_BYTES = 1024**2


def archive_bytes(archive: BinaryIO) -> int:
    """Measure the whole archive in bytes, and rewind it."""
    size = archive.seek(0, os.SEEK_END)
    archive.seek(0)
    return size


def unpack_archive(archive: BinaryIO, filename: str, upload: str) -> list[VideoSpec]:
    """Unpack an archive's videos into ``uploads_dir / upload``. An error leaves nothing on disk.

    A manifest lists all videos. Without one, all videos in the archive are unpacked, and those that no caption table
    names get captions from sidecar files. A listed video without a transcript gets one from its subtitles.

    Returns:
        The videos, with URIs ``upload://<upload>/<path>``; remote videos keep theirs.

    Raises:
        InvalidInput: The file is not an archive, a path is unsafe, the manifest is invalid, or a video is missing.
        TooLarge: There are too many files or too many bytes.
        Unavailable: The disk is full.
    """
    folder = settings().uploads_dir / upload
    try:
        with open_archive(archive, filename) as opened:
            members = list_members(opened)
            videos = _read_videos(opened, members)
            _write_videos(opened, members, videos, folder)
    except BaseException as error:
        remove_upload(upload)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable("The server's disk is full; nothing was stored.", 60) from error
        if isinstance(error, CinestrataError) or not isinstance(error, Exception):
            raise
        # Parsers of untrusted bytes may raise anything.
        raise invalid_archive(
            f"The archive {filename!r} is damaged ({type(error).__name__}).", "Pack it again."
        ) from error
    return [
        video
        if is_source_uri(video.uri)
        else video.model_copy(update={"uri": f"{UPLOAD_SCHEME}{upload}/{safe_path(video.uri).as_posix()}"})
        for video in videos
    ]


def _read_videos(archive: Archive, members: dict[PurePosixPath, ArchiveMember]) -> list[VideoSpec]:
    """Read the archive's videos."""
    named = [p for p in members if p.name in MANIFEST_NAMES and p.stem == "manifest" and len(p.parts) <= 2]
    named = [p for p in named if len(p.parts) == 1] or named
    if len(named) > 1:
        raise invalid_archive("It contains several manifests.", _MANIFEST_HINT)
    tables = CaptionTables(lambda: [str(path) for path in members])
    budget = _MAX_MANIFEST_BYTES
    # In archive order: a gzip stream cannot seek backwards.
    for path in named or map(PurePosixPath, find_tables(map(str, members))):
        require_text_table(str(path), str(path))
        with archive.open(members[path]) as stream:
            raw = stream.read(budget + 1)
        budget -= len(raw)
        if budget < 0:
            raise TooLarge(
                f"{path}: The caption tables are larger than {_MAX_MANIFEST_BYTES} bytes. Split the archive."
            )
        tables.add(str(path), io.BytesIO(raw))
    rows = tables.videos()
    for number, row in enumerate(rows):
        if not is_source_uri(row.uri):
            safe_path(row.uri, f"videos[{number}].uri")
    others: list[str] = []
    if not named:
        with_row = {row.uri for row in rows}
        others = [path for path in find_videos(map(str, members))[0] if path not in with_row]
    side_files = _load_sidecars(archive, members, [row.uri for row in rows if not row.transcript] + others)
    videos = [add_subtitles(row, row.uri, side_files) for row in rows]
    videos += [read_sidecars(uri, side_files) for uri in sorted(others)]
    # Otherwise a misnamed manifest would yield a domain without captions.
    if not rows and not any(video.captions or video.transcript for video in videos):
        raise invalid_archive("It contains no manifest and no captions.", _MANIFEST_HINT)
    return videos


def _load_sidecars(
    archive: Archive, members: dict[PurePosixPath, ArchiveMember], videos: Sequence[str]
) -> SideFiles:
    """Load the sidecar files of videos."""
    names = SideFileNames(map(str, members))
    wanted = {path for uri in videos for name in side_file_names(uri) for path in names.find(name)}
    sidecars: dict[str, bytes] = {}
    budget = _MAX_MANIFEST_BYTES
    # In archive order: a gzip stream cannot seek backwards.
    for path, member in members.items():
        if str(path) in wanted:
            with archive.open(member) as stream:
                sidecars[str(path)] = stream.read(budget + 1)
            budget -= len(sidecars[str(path)])
            if budget < 0:
                raise TooLarge(
                    f"{path}: The text files are larger than {_MAX_MANIFEST_BYTES} bytes. Split the archive."
                )

    return SideFiles(names.find, lambda path: io.BytesIO(sidecars[path]))


def _write_videos(
    archive: Archive,
    members: dict[PurePosixPath, ArchiveMember],
    videos: list[VideoSpec],
    folder: Path,
) -> None:
    budget = request_limits.MAX_UNPACKED_BYTES
    wanted: dict[PurePosixPath, None] = {}
    missing: dict[int, str] = {}
    for number, video in enumerate(videos):
        if is_source_uri(video.uri):
            continue
        path = safe_path(video.uri, f"videos[{number}].uri")
        if path in members:
            wanted[path] = None
        else:
            missing[number] = video.uri
    if missing:
        raise _missing_files(missing)
    # In archive order: a gzip stream cannot seek backwards.
    for path in (path for path in members if path in wanted):
        target = folder.joinpath(*path.parts)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(members[path]) as source, target.open("xb") as sink:
                while block := source.read(_BLOCK_BYTES):
                    budget -= len(block)
                    if budget < 0:
                        raise archive_too_large()
                    sink.write(block)
                sink.flush()
                os.fsync(sink.fileno())
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise invalid_archive(
                f"{str(path)!r} collides with another name in it.", "Rename one of them."
            ) from None
    # A stored task survives a power cut, and so must its videos.
    for inside in {folder.joinpath(*above.parts) for path in wanted for above in path.parents}:
        sync(inside)
    sync(folder.parent)


def _missing_files(missing: dict[int, str]) -> InvalidInput:
    """Create the error for all missing files, by video number."""
    listed = dict(list(missing.items())[:_MAX_LISTED])
    names = ", ".join(uri[:200] for uri in listed.values())
    more = f" and {len(missing) - len(listed)} more" if len(missing) > len(listed) else ""
    hint = "Add the files, or remove their rows. Paths in a manifest are relative to the manifest's folder."
    verb = "file is" if len(missing) == 1 else "files are"
    return InvalidInput(
        f"{len(missing)} {verb} not in the archive: {names}{more}. {hint}",
        [
            FieldError(f"videos[{number}].uri", f"{uri[:200]!r} is not in the archive.", hint)
            for number, uri in listed.items()
        ],
    )
