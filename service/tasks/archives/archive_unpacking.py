"""Unpacking of uploaded archives: zip or tar(.gz) with a manifest (see ``manifest_parser``).

An archive is not trusted. Only plain files that the manifest lists are written, each to a validated path.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from index.files.durable_files import sync
from service.core import request_limits
from service.core.errors import CinestrataError, InvalidInput, TooLarge, Unavailable
from service.core.schemas import VideoSpec
from service.core.settings import settings
from service.storage.library_paths import UPLOAD_SCHEME
from service.tasks.archives.archive_errors import archive_too_large, invalid_archive, safe_path
from service.tasks.archives.archive_reader import Archive, ArchiveMember, list_members, open_archive
from service.tasks.archives.manifest_parser import MANIFEST_NAMES, parse_manifest
from service.tasks.archives.upload_storage import remove_upload

__all__ = ["archive_digest", "unpack_archive"]

_MAX_MANIFEST_BYTES = 32 * 1024**2
_BLOCK_BYTES = 1024**2


def archive_digest(archive: BinaryIO) -> bytes:
    """Return the SHA-256 of the whole archive and rewind it."""
    archive.seek(0)
    digest = hashlib.file_digest(archive, "sha256").digest()  # type: ignore[arg-type]
    archive.seek(0)
    return digest


def unpack_archive(archive: BinaryIO, filename: str, upload: str) -> list[VideoSpec]:
    """Unpack the videos that the manifest lists into ``uploads_dir / upload``. On an error nothing is left on disk.

    Returns:
        The videos, with URIs ``upload://<upload>/<path>``.

    Raises:
        InvalidInput: the file is not an archive, a path is unsafe, the manifest is invalid, or a video is missing.
        TooLarge: there are too many files or too many bytes.
        Unavailable: the disk is full.
    """
    folder = settings().uploads_dir / upload
    try:
        with open_archive(archive, filename) as opened:
            members = list_members(opened)
            videos, base = _read_manifest(opened, members)
            _write_videos(opened, members, videos, base, folder)
    except BaseException as error:
        remove_upload(upload)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable("The disk of the server is full; nothing was stored.", 60) from error
        if isinstance(error, CinestrataError) or not isinstance(error, Exception):
            raise
        # Parsers of untrusted bytes raise exceptions of any type.
        raise invalid_archive(
            f"The archive {filename!r} is damaged ({type(error).__name__}).", "Pack it again."
        ) from error
    return [
        video.model_copy(
            update={"uri": f"{UPLOAD_SCHEME}{upload}/{(base / safe_path(video.uri)).as_posix()}"}
        )
        for video in videos
    ]


def _read_manifest(
    archive: Archive, members: dict[PurePosixPath, ArchiveMember]
) -> tuple[list[VideoSpec], PurePosixPath]:
    """Return the videos of the manifest, and the folder of the manifest."""
    found = [p for p in members if p.name in MANIFEST_NAMES and len(p.parts) <= 2]
    found = [p for p in found if len(p.parts) == 1] or found
    if len(found) != 1:
        count = "several manifests" if found else "no manifest"
        raise invalid_archive(f"It contains {count}.", "Put one manifest.jsonl or manifest.csv at its top.")
    with archive.open(members[found[0]]) as stream:
        raw = stream.read(_MAX_MANIFEST_BYTES + 1)
    if len(raw) > _MAX_MANIFEST_BYTES:
        raise TooLarge(
            f"{found[0]}: The manifest is larger than {_MAX_MANIFEST_BYTES} bytes. Split the archive."
        )
    return parse_manifest(raw, found[0].name), found[0].parent


def _write_videos(
    archive: Archive,
    members: dict[PurePosixPath, ArchiveMember],
    videos: list[VideoSpec],
    base: PurePosixPath,
    folder: Path,
) -> None:
    budget = request_limits.MAX_UNPACKED_BYTES
    wanted: dict[PurePosixPath, None] = {}
    for number, video in enumerate(videos):
        path = base / safe_path(video.uri, f"videos[{number}].uri")
        if path not in members:
            raise InvalidInput.at(
                f"videos[{number}].uri",
                f"{video.uri!r} is not in the archive.",
                "Name a file by its path relative to the manifest.",
            )
        wanted[path] = None
    # In the order of the archive: a gzip stream cannot seek backwards.
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
