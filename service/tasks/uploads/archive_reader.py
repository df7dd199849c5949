"""Read untrusted zip and tar archives within limits.

The names, sizes and counts that an archive states are checked, and the extracted bytes are counted again.
"""

from __future__ import annotations

import gzip
import re
import stat
import tarfile
import unicodedata
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any, BinaryIO, Protocol

from service.core import request_limits
from service.core.errors import InvalidInput, TooLarge
from service.core.settings import settings

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
