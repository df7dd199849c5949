"""Unpack uploaded archives: zip or tar(.gz), with a manifest or with sidecar files.

Archives are untrusted. Only plain files that the manifest lists, or without a manifest, files with video extensions,
are written, each to a validated path. Typed tables are not read as manifests: their parsers use unbounded memory.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import stat
import tarfile
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Protocol

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
from service.tasks.uploads.uploaded_videos import remove_upload

ARCHIVE_FIELD = "archive"


def invalid_archive(message: str, hint: str) -> InvalidInput:
    """Create the error for an unusable archive."""
    return InvalidInput.at(ARCHIVE_FIELD, message, hint)


def archive_too_large() -> TooLarge:
    """Create the error for an archive that unpacks to too many bytes."""
    return TooLarge(
        f"{ARCHIVE_FIELD}: It unpacks to more than {request_limits.MAX_UNPACKED_BYTES} bytes. Split it."
    )


_DRIVE = re.compile("[A-Za-z]:")  # makes a path absolute on Windows


def safe_path(name: str, field: str = ARCHIVE_FIELD) -> PurePosixPath:
    """Validate the path of a file inside an archive.

    Args:
        name: Path as stated by the archive or manifest.
        field: Field that an error names.

    Raises:
        InvalidInput: The path is absolute, leaves the archive, is ambiguous or is too long.
    """
    path = PurePosixPath(name)
    is_unsafe = (
        not path.parts
        or path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or (len(path.parts) > 1 and _DRIVE.fullmatch(path.parts[0]))
        or any(unicodedata.category(c) in ("Cc", "Cs") for c in name)
        or any(len(part.encode()) > 255 for part in path.parts)
        or len(name) > 1024
    )
    if is_unsafe:
        raise InvalidInput.at(
            field, f"{name[:200]!r} is not a safe path.", "Use relative paths without '..'."
        )
    return path


MAX_HEADER_CHARS = 32 * 1024**2  # over all tar headers

_MAX_READ_BYTES = 40 * 1024**2  # per read call: a central directory or a manifest
_MAX_MEMBER_HEADER_BYTES = 1024**2  # in one tar member's headers
_RECORD_CHARS = 64  # memory per header record, besides its characters
_ZIP_ENTRY = b"PK\x01\x02"  # starts a central directory entry
# zipfile decompresses other methods without a limit: 773 bytes of bzip2 become 600 MB in one read call.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class ArchiveMember:
    """A plain file in an archive.

    Attributes:
        name: Path as stated by the archive.
        path: Validated path: relative, without ``..``.
        size: Size in bytes that the archive states; the real size may differ.
        handle: The archive library's own object.
    """

    name: str
    path: PurePosixPath
    size: int
    handle: Any


class Archive(Protocol):
    """An open zip or tar archive."""

    def members(self) -> Iterator[ArchiveMember | None]:
        """Iterate over the entries; None for a folder."""

    def open(self, member: ArchiveMember) -> IO[bytes]:
        """Open a member for reading."""


def list_members(archive: Archive) -> dict[PurePosixPath, ArchiveMember]:
    """List an archive's files by path.

    Raises:
        InvalidInput: A member is not a plain file, or its path is unsafe or a duplicate.
        TooLarge: The archive states too many files or bytes.
    """
    members: dict[PurePosixPath, ArchiveMember] = {}
    total = 0
    for number, member in enumerate(archive.members(), 1):
        if number > request_limits.MAX_ARCHIVE_FILES:
            raise _too_many_files()
        if member is None:
            continue
        if member.path in members:
            raise invalid_archive(f"It contains {member.name!r} twice.", "Pack every file once.")
        members[member.path] = member
        total += member.size
        if total > request_limits.MAX_UNPACKED_BYTES:
            raise archive_too_large()
    return members


@contextmanager
def open_archive(file: BinaryIO, filename: str) -> Iterator[Archive]:
    """Open a zip, tar or tar.gz archive, recognized by its content.

    Raises:
        InvalidInput: The file is none of these.
    """
    # Check for tar first: a zip near the end of a tar would be mistaken for the whole archive.
    file.seek(257)
    if file.read(5) != b"ustar" and zipfile.is_zipfile(file):
        with zipfile.ZipFile(_ZipReader(file)) as opened:
            yield _ZipArchive(opened)
        return
    file.seek(0)
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    raw = gzip.GzipFile(fileobj=file) if is_gzip else file
    reader = _TarReader(raw)
    try:
        tar = tarfile.TarFile(fileobj=reader, mode="r")  # type: ignore[arg-type]
    except tarfile.ReadError as error:
        raise invalid_archive(
            f"{filename!r} is neither a zip nor a tar archive.", "Pack a .zip or .tar.gz."
        ) from error
    with tar:
        yield _TarArchive(tar, reader)


class _ZipArchive:
    def __init__(self, opened: zipfile.ZipFile) -> None:
        self._opened = opened

    def members(self) -> Iterator[ArchiveMember | None]:
        for info in self._opened.infolist():
            if info.is_dir():
                yield None
                continue
            if info.flag_bits & 1:
                raise invalid_archive(f"{info.filename!r} is encrypted.", "Pack it without a password.")
            if info.compress_type not in _ZIP_METHODS:
                raise invalid_archive(
                    f"{info.filename!r} is compressed by an unusual method.",
                    "Pack it with deflate, or uncompressed.",
                )
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise invalid_archive(
                    f"{info.filename!r} is not a plain file.", "Pack plain files only, no links."
                )
            yield ArchiveMember(info.filename, safe_path(info.filename), info.file_size, info)

    def open(self, member: ArchiveMember) -> IO[bytes]:
        return self._opened.open(member.handle)


class _TarArchive:
    def __init__(self, opened: tarfile.TarFile, reader: _TarReader) -> None:
        self._opened = opened
        self._reader = reader

    def members(self) -> Iterator[ArchiveMember | None]:
        header_chars = 0
        for info in self._infos():
            # All headers stay in memory, and repeated characters compress to almost nothing. Global header records are
            # copied for each member.
            records = info.pax_headers.items()
            header_chars += len(info.name) + len(info.linkname)
            header_chars += sum(len(key) + len(value) + _RECORD_CHARS for key, value in records)
            if header_chars > MAX_HEADER_CHARS:
                raise invalid_archive("Its headers are too long.", "Pack it again.")
            if info.isdir():
                yield None
                continue
            if not info.isreg() or info.issparse():
                raise invalid_archive(
                    f"{info.name!r} is not a plain file.", "Pack plain files only, no links."
                )
            yield ArchiveMember(info.name, safe_path(info.name), info.size, info)

    def _infos(self) -> Iterator[tarfile.TarInfo]:
        """Iterate over the headers; reads are limited within a header, and unlimited for file contents."""
        infos = iter(self._opened)
        while (info := next(infos, None)) is not None:
            self._reader.header_bytes = 0
            yield info
        self._reader.is_in_header = False

    def open(self, member: ArchiveMember) -> IO[bytes]:
        file = self._opened.extractfile(member.handle)
        if file is None:
            raise invalid_archive(f"{member.name!r} cannot be read.", "Pack the archive again.")
        return file


class _BoundedReader:
    """A file object that limits reads and seeks, so that no header makes a parser read or unpack endlessly."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._end = settings().max_upload_bytes + request_limits.MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_READ_BYTES:
            raise invalid_archive("One of its headers is too large.", "Pack it again.")
        if self._raw.tell() > self._end:
            raise archive_too_large()
        return bytes(self._raw.read(_MAX_READ_BYTES if size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > self._end:
            raise archive_too_large()
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        return int(self._raw.tell())

    def seekable(self) -> bool:
        return True


class _ZipReader(_BoundedReader):
    """Refuses an oversized directory before zipfile creates an object per entry."""

    def read(self, size: int = -1) -> bytes:
        data = super().read(size)
        if data.count(_ZIP_ENTRY) > request_limits.MAX_ARCHIVE_FILES:
            raise _too_many_files()
        return data


class _TarReader(_BoundedReader):
    """Limits a member's headers, which tarfile parses completely before it returns the member.

    Attributes:
        is_in_header: Whether bytes belong to headers, rather than file contents.
        header_bytes: Bytes read from the next member's headers.
    """

    def __init__(self, raw: Any) -> None:
        super().__init__(raw)
        self.is_in_header = True
        self.header_bytes = 0

    def read(self, size: int = -1) -> bytes:
        if self.is_in_header:
            self.header_bytes += max(size, 0)
            if self.header_bytes > _MAX_MEMBER_HEADER_BYTES:
                raise invalid_archive("One of its headers is too large.", "Pack it again.")
        return super().read(size)


def _too_many_files() -> TooLarge:
    return TooLarge(f"{ARCHIVE_FIELD}: It has more than {request_limits.MAX_ARCHIVE_FILES} files. Split it.")


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
    archive: Archive, members: dict[PurePosixPath, ArchiveMember], videos: list[VideoSpec], folder: Path
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
