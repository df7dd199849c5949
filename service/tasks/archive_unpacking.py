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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.uris import is_source_uri
from index.files.durable_files import sync
from service.core import request_limits
from service.core.errors import CinestrataError, FieldError, InvalidInput, TooLarge, Unavailable
from service.core.settings import settings
from service.storage.library_files import UPLOAD_SCHEME
from service.tasks.manifests.caption_tables import (
    MANIFEST_NAMES,
    CaptionTables,
    find_tables,
    require_text_table,
)
from service.tasks.manifests.side_files import (
    SideFileNames,
    SideFiles,
    add_subtitles,
    find_videos,
    read_sidecars,
    side_file_names,
)
from service.tasks.uploaded_videos import remove_upload

ARCHIVE_FIELD = "archive"
MAX_HEADER_CHARS = 32 * 1024**2  # over all tar headers

_DRIVE = re.compile("[A-Za-z]:")  # makes a path absolute on Windows
_MAX_READ_BYTES = 40 * 1024**2  # per read call: a central directory or a manifest
_MAX_MEMBER_HEADER_BYTES = 1024**2  # in one tar member's headers
_RECORD_CHARS = 64  # memory per header record, besides its characters
_ZIP_ENTRY = b"PK\x01\x02"  # starts a central directory entry
# zipfile decompresses other methods without a limit: 773 bytes of bzip2 become 600 MB in one read call.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAX_TEXT_BYTES = 32 * 1024**2  # for all caption tables, and for all sidecar files
_MANIFEST_HINT = "Put one manifest.jsonl or manifest.csv at the top level."
_MISSING_HINT = (
    "Add the files, or remove their rows. Paths in a manifest are relative to the manifest's folder."
)
_MAX_LISTED = 20
_BLOCK_BYTES = 1024**2


@dataclass(frozen=True)
class ArchiveMember:
    """A plain file in an archive."""

    path: PurePosixPath  # validated path: relative, without ..
    size: int  # size in bytes that the archive states; the real size may differ
    open: Callable[[], IO[bytes]]


Members = Mapping[PurePosixPath, ArchiveMember]  # in archive order: a gzip stream cannot seek backwards


def unpack_archive(archive: BinaryIO, filename: str, upload: str) -> list[VideoSpec]:
    """Unpack an archive's videos into ``uploads_dir / upload``; raise InvalidInput, TooLarge, Unavailable.

    A manifest lists all videos. Without one, all videos in the archive are unpacked, and those that no caption table
    names get captions from sidecar files. A listed video without a transcript gets one from its subtitles.

    Their URIs are ``upload://<upload>/<path>``; remote videos keep theirs. An error leaves nothing on disk.
    """
    try:
        with _open_archive(archive, filename) as entries:
            members = _list_members(entries)
            videos = _read_videos(members)
            _write_videos(members, videos, settings().uploads_dir / upload)
    except BaseException as error:
        remove_upload(upload)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable("The server's disk is full; nothing was stored.", 60) from error
        if isinstance(error, CinestrataError) or not isinstance(error, Exception):
            raise
        # Parsers of untrusted bytes may raise anything.
        message = f"The archive {filename!r} is damaged ({type(error).__name__})."
        raise _invalid_archive(message, "Pack it again.") from error
    return [
        video
        if is_source_uri(video.uri)
        else video.model_copy(update={"uri": f"{UPLOAD_SCHEME}{upload}/{_safe_path(video.uri).as_posix()}"})
        for video in videos
    ]


def _safe_path(name: str, field: str = ARCHIVE_FIELD) -> PurePosixPath:
    """Validate the path of a file inside an archive; raise InvalidInput."""
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
        message = f"{name[:200]!r} is not a safe path."
        raise InvalidInput.at(field, message, "Use relative paths without '..'.")
    return path


def _list_members(entries: Iterable[ArchiveMember | None]) -> Members:
    """List an archive's plain files by path; raise InvalidInput for other members and unsafe paths, TooLarge."""
    members: dict[PurePosixPath, ArchiveMember] = {}
    total = 0
    for number, member in enumerate(entries, 1):
        if number > request_limits.MAX_ARCHIVE_FILES:
            raise _too_many_files()
        if member is None:
            continue
        if member.path in members:
            raise _invalid_archive(f"It contains {str(member.path)!r} twice.", "Pack every file once.")
        members[member.path] = member
        total += member.size
        if total > request_limits.MAX_UNPACKED_BYTES:
            raise _archive_too_large()
    return members


@contextmanager
def _open_archive(file: BinaryIO, filename: str) -> Iterator[Iterator[ArchiveMember | None]]:
    """Open a zip or tar archive, by its content, and iterate over its entries (None: a folder); raise InvalidInput."""
    # Check for tar first: a zip near the end of a tar would be mistaken for the whole archive.
    file.seek(257)
    if file.read(5) != b"ustar" and zipfile.is_zipfile(file):
        with zipfile.ZipFile(_ZipReader(file)) as opened:
            yield _zip_entries(opened)
        return
    file.seek(0)
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    reader = _TarReader(gzip.GzipFile(fileobj=file) if is_gzip else file)
    try:
        tar = tarfile.TarFile(fileobj=reader, mode="r")  # type: ignore[arg-type]
    except tarfile.ReadError as error:
        message = f"{filename!r} is neither a zip nor a tar archive."
        raise _invalid_archive(message, "Pack a .zip or .tar.gz.") from error
    with tar:
        yield _tar_entries(tar, reader)


def _zip_entries(opened: zipfile.ZipFile) -> Iterator[ArchiveMember | None]:
    for info in opened.infolist():
        if info.is_dir():
            yield None
            continue
        if info.flag_bits & 1:
            raise _invalid_archive(f"{info.filename!r} is encrypted.", "Pack it without a password.")
        if info.compress_type not in _ZIP_METHODS:
            message = f"{info.filename!r} is compressed by an unusual method."
            raise _invalid_archive(message, "Pack it with deflate, or uncompressed.")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            raise _no_plain_file(info.filename)
        yield ArchiveMember(_safe_path(info.filename), info.file_size, partial(opened.open, info))


def _tar_entries(opened: tarfile.TarFile, reader: _TarReader) -> Iterator[ArchiveMember | None]:
    """Iterate over the entries; reads are limited within a header, and unlimited for file contents."""
    header_chars = 0
    for info in opened:
        reader.header_bytes = 0
        # All headers stay in memory, and repeated characters compress to almost nothing. Global header records are
        # copied for each member.
        header_chars += len(info.name) + len(info.linkname)
        header_chars += sum(len(key) + len(value) + _RECORD_CHARS for key, value in info.pax_headers.items())
        if header_chars > MAX_HEADER_CHARS:
            raise _invalid_archive("Its headers are too long.", "Pack it again.")
        if info.isdir():
            yield None
            continue
        if not info.isreg() or info.issparse():
            raise _no_plain_file(info.name)
        # A regular file is never None.
        open_file = cast(Callable[[], IO[bytes]], partial(opened.extractfile, info))
        yield ArchiveMember(_safe_path(info.name), info.size, open_file)
    reader.is_in_header = False


class _BoundedReader:
    """A file object that limits reads and seeks, so that no header makes a parser read or unpack endlessly."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._end = settings().max_upload_bytes + request_limits.MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_READ_BYTES:
            raise _invalid_archive("One of its headers is too large.", "Pack it again.")
        if self._raw.tell() > self._end:
            raise _archive_too_large()
        return bytes(self._raw.read(_MAX_READ_BYTES if size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > self._end:
            raise _archive_too_large()
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
    """Limits a member's headers, which tarfile parses completely before it returns the member."""

    is_in_header = True  # whether bytes belong to headers, rather than file contents
    header_bytes = 0  # read from the next member's headers

    def read(self, size: int = -1) -> bytes:
        if self.is_in_header:
            self.header_bytes += max(size, 0)
            if self.header_bytes > _MAX_MEMBER_HEADER_BYTES:
                raise _invalid_archive("One of its headers is too large.", "Pack it again.")
        return super().read(size)


def _invalid_archive(message: str, hint: str) -> InvalidInput:
    return InvalidInput.at(ARCHIVE_FIELD, message, hint)


def _no_plain_file(name: str) -> InvalidInput:
    return _invalid_archive(f"{name!r} is not a plain file.", "Pack plain files only, no links.")


def _archive_too_large() -> TooLarge:
    limit = request_limits.MAX_UNPACKED_BYTES
    return TooLarge(f"{ARCHIVE_FIELD}: It unpacks to more than {limit} bytes. Split it.")


def _too_many_files() -> TooLarge:
    return TooLarge(f"{ARCHIVE_FIELD}: It has more than {request_limits.MAX_ARCHIVE_FILES} files. Split it.")


def _read_videos(members: Members) -> list[VideoSpec]:
    """Read the archive's videos."""
    paths = [*map(str, members)]
    named = [p for p in members if p.name in MANIFEST_NAMES and p.stem == "manifest" and len(p.parts) <= 2]
    named = [p for p in named if len(p.parts) == 1] or named
    if len(named) > 1:
        raise _invalid_archive("It contains several manifests.", _MANIFEST_HINT)
    names = [*map(str, named)] or find_tables(paths)
    for name in names:
        require_text_table(name, name)
    tables = CaptionTables(lambda: paths)
    for name, content in _read_texts(members, names):
        tables.add(name, io.BytesIO(content))
    rows = tables.videos()
    for number, row in enumerate(rows):
        if not is_source_uri(row.uri):
            _safe_path(row.uri, f"videos[{number}].uri")
    with_row = {row.uri for row in rows}
    others = [] if named else [path for path in find_videos(paths)[0] if path not in with_row]
    side_names = SideFileNames(paths)
    captioned = [row.uri for row in rows if not row.transcript] + others
    wanted = (path for uri in captioned for name in side_file_names(uri) for path in side_names.find(name))
    texts = dict(_read_texts(members, wanted))
    side_files = SideFiles(side_names.find, lambda path: io.BytesIO(texts[path]))
    videos = [add_subtitles(row, row.uri, side_files) for row in rows]
    videos += [read_sidecars(uri, side_files) for uri in sorted(others)]
    # Otherwise a misnamed manifest would yield a domain without captions.
    if not rows and not any(video.captions or video.transcript for video in videos):
        raise _invalid_archive("It contains no manifest and no captions.", _MANIFEST_HINT)
    return videos


def _read_texts(members: Members, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Read files of limited size together: their paths and contents."""
    wanted = set(names)
    budget = _MAX_TEXT_BYTES
    for path, member in members.items():
        if str(path) in wanted:
            with member.open() as stream:
                content = stream.read(budget + 1)
            budget -= len(content)
            if budget < 0:
                limit = f"{_MAX_TEXT_BYTES} bytes"
                raise TooLarge(f"{path}: The text files are larger than {limit}. Split the archive.")
            yield str(path), content


def _write_videos(members: Members, videos: list[VideoSpec], folder: Path) -> None:
    budget = request_limits.MAX_UNPACKED_BYTES
    numbered = enumerate(videos)
    listed = {n: _safe_path(v.uri, f"videos[{n}].uri") for n, v in numbered if not is_source_uri(v.uri)}
    if missing := [number for number, path in listed.items() if path not in members]:
        raise _missing_files(videos, missing)
    wanted = set(listed.values())
    for path in (path for path in members if path in wanted):
        target = folder.joinpath(*path.parts)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with members[path].open() as source, target.open("xb") as sink:
                while block := source.read(_BLOCK_BYTES):
                    budget -= len(block)
                    if budget < 0:
                        raise _archive_too_large()
                    sink.write(block)
                sink.flush()
                os.fsync(sink.fileno())
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            message = f"{str(path)!r} collides with another name in it."
            raise _invalid_archive(message, "Rename one of them.") from None
    # A stored task survives a power cut, and so must its videos.
    for inside in {folder.joinpath(*above.parts) for path in wanted for above in path.parents}:
        sync(inside)
    sync(folder.parent)


def _missing_files(videos: list[VideoSpec], missing: list[int]) -> InvalidInput:
    """Create the error for all missing files, by video number."""
    listed = {number: videos[number].uri[:200] for number in missing[:_MAX_LISTED]}
    more = f" and {len(missing) - len(listed)} more" if len(missing) > len(listed) else ""
    verb = "file is" if len(missing) == 1 else "files are"
    names = ", ".join(listed.values())
    return InvalidInput(
        f"{len(missing)} {verb} not in the archive: {names}{more}. {_MISSING_HINT}",
        [
            FieldError(f"videos[{number}].uri", f"{uri!r} is not in the archive.", _MISSING_HINT)
            for number, uri in listed.items()
        ],
    )
