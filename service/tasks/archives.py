"""Archives of videos that were posted: zip or tar(.gz) with ``manifest.csv`` or ``manifest.jsonl``.

``manifest.jsonl`` holds one video a line, with the fields of a video in ``POST /tasks``; further fields become
metadata. ``manifest.csv`` has the columns ``uri``, ``captions`` (several are separated by ``|``), ``id``, ``split``;
further columns become metadata; a video may also fill several rows, one caption each. URIs are paths inside the
archive, beside the manifest.

They are hostile until checked: names, sizes and counts are compared with what is really read, and only plain files
that the manifest names are written, each to a path that was taken apart and put together again.
"""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Protocol

from pydantic import ValidationError
from sqlalchemy import exists, select

from index.files.durable_files import sync
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import Task, Video
from service.core import request_limits
from service.core.errors import CinestrataError, InvalidInput, TooLarge, Unavailable
from service.core.schemas import VideoSpec
from service.core.settings import settings
from service.storage import index_manifest
from service.storage.library_paths import UPLOAD_SCHEME

__all__ = ["digest", "parse_manifest", "remove", "sweep", "unpack_archive"]

_FIELD = "archive"
_MANIFESTS = ("manifest.jsonl", "manifest.csv")
_MAX_MANIFEST = 32 * 1024**2
_MAX_READ = 40 * 1024**2  # a central directory, or a manifest, at once
_MAX_NAMED = 32 * 1024**2  # characters that the headers of a tar say of its members
_BLOCK = 1024**2
_UPLOAD = re.compile(r"tsk_[0-9a-f]{16}")  # a task's folder; what else lies beside it is not ours
# An upload writes all the time, and once it is unpacked is stored within seconds: what nothing was written to for a day
# was given up. To wait costs room; to be hasty would cost somebody's videos. Counted from when it came to this disk
# (ctime, which no copy brings along), so that who puts uploads back before their catalog has a day for it.
_GIVEN_UP = timedelta(days=1)


@dataclass(frozen=True)
class _Member:
    name: str  # as the archive says it
    path: PurePosixPath  # checked: relative, without ..
    size: int  # as the archive says it; what is read is counted again
    handle: Any


class _Archive(Protocol):
    def members(self) -> Iterator[_Member | None]:
        """Every entry; None for a folder."""

    def open(self, member: _Member) -> IO[bytes]:
        """The member's bytes."""


def digest(archive: BinaryIO) -> bytes:
    """SHA-256 of the whole archive; leaves it at its beginning."""
    archive.seek(0)
    found = hashlib.file_digest(archive, "sha256").digest()  # type: ignore[arg-type]
    archive.seek(0)
    return found


def remove(upload: str) -> None:
    """Delete what was unpacked for a task that did not come to be."""
    shutil.rmtree(settings().uploads_dir / upload, ignore_errors=True)


def sweep() -> list[str]:
    """Delete what was unpacked for tasks that are not stored: their process was killed, or the commit lost.

    A folder stays if the index shows its task or a video of another task is named by a path through it, whatever became
    of its task's row.

    Returns:
        The folders' names.

    Raises:
        Unavailable: the catalog or the index cannot be read; nothing was deleted.
    """
    folder = settings().uploads_dir
    given_up = time.time() - _GIVEN_UP.total_seconds()
    found = sorted(
        path.name for path in folder.glob("tsk_*") if _UPLOAD.fullmatch(path.name) and path.is_dir()
    )
    with session_scope() as session:
        stored = {
            task
            for chunk in id_chunks(found)
            for task in session.scalars(select(Task.id).where(Task.id.in_(chunk)))
        }
        left = [
            name
            for name in found
            if name not in stored
            and _last_change(folder / name) < given_up
            and not session.scalar(select(exists().where(Video.uri.contains(name, autoescape=True))))
        ]
    if left:
        shown = index_manifest.read_manifest().shards
        left = [name for name in left if name not in shown]
    for name in left:
        remove(name)
    return left


def _last_change(folder: Path) -> float:
    """Seconds since the epoch; infinity while somebody else is removing it."""
    try:
        return max(path.lstat().st_ctime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:
        return math.inf


def unpack_archive(archive: BinaryIO, filename: str, upload: str) -> list[VideoSpec]:
    """Unpack the videos that the manifest names into ``uploads_dir / upload``.

    Returns:
        The videos; their URIs are ``upload://<upload>/<path>``.

    Raises:
        InvalidInput: no archive, an unsafe name, a broken manifest or a file that is not there.
        TooLarge: too many files or too many bytes. In both cases nothing is left on disk.
    """
    folder = settings().uploads_dir / upload
    try:
        with _opened(archive, filename) as opened:
            members = _checked_members(opened)
            videos, base = _manifest(opened, members)
            _write(opened, members, videos, base, folder)
    except BaseException as error:
        remove(upload)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable("The server's disk is full; nothing was stored.", 60) from error
        if isinstance(error, CinestrataError) or not isinstance(error, Exception):
            raise
        # Parsers of hostile bytes raise what they like.
        raise _refused(
            f"The archive {filename!r} is damaged ({type(error).__name__}).", "Pack it again."
        ) from error
    return [
        video.model_copy(update={"uri": f"{UPLOAD_SCHEME}{upload}/{(base / _safe(video.uri)).as_posix()}"})
        for video in videos
    ]


# --- the two kinds of archive ---


class _Zip:
    def __init__(self, opened: zipfile.ZipFile) -> None:
        self._opened = opened

    def members(self) -> Iterator[_Member | None]:
        for info in self._opened.infolist():
            if info.is_dir():
                yield None
                continue
            if info.flag_bits & 1:
                raise _refused(f"{info.filename!r} is encrypted.", "Pack it without a password.")
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                raise _refused(f"{info.filename!r} is not a plain file.", "Pack plain files only, no links.")
            yield _Member(info.filename, _safe(info.filename), info.file_size, info)

    def open(self, member: _Member) -> IO[bytes]:
        return self._opened.open(member.handle)


class _Tar:
    def __init__(self, opened: tarfile.TarFile) -> None:
        self._opened = opened

    def members(self) -> Iterator[_Member | None]:
        said = 0
        for info in self._opened:
            # All of it stays in memory, and a run of one letter is packed to nothing.
            said += sum(map(len, (info.name, info.linkname, *info.pax_headers.values())))
            if said > _MAX_NAMED:
                raise _refused("Its headers are absurdly long.", "Pack it again.")
            if info.isdir():
                yield None
                continue
            if not info.isreg():
                raise _refused(f"{info.name!r} is not a plain file.", "Pack plain files only, no links.")
            yield _Member(info.name, _safe(info.name), info.size, info)

    def open(self, member: _Member) -> IO[bytes]:
        found = self._opened.extractfile(member.handle)
        if found is None:
            raise _refused(f"{member.name!r} cannot be read.", "Pack the archive again.")
        return found


@contextmanager
def _opened(archive: BinaryIO, filename: str) -> Iterator[_Archive]:
    # Where a tar says that it is one; a zip inside it, near its end, would be taken for all of it.
    archive.seek(257)
    if archive.read(5) != b"ustar" and zipfile.is_zipfile(archive):
        with zipfile.ZipFile(_Bounded(archive)) as opened:
            yield _Zip(opened)
        return
    archive.seek(0)
    packed = archive.read(2) == b"\x1f\x8b"
    archive.seek(0)
    raw = gzip.GzipFile(fileobj=archive) if packed else archive
    try:
        tar = tarfile.TarFile(fileobj=_Bounded(raw), mode="r")  # type: ignore[arg-type]
    except tarfile.ReadError as error:
        raise _refused(
            f"{filename!r} is neither a zip nor a tar archive.", "Pack a .zip or .tar.gz."
        ) from error
    with tar:
        yield _Tar(tar)


class _Bounded:
    """What an archive is read through: no header can make its parser read, or unpack, without end."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._end = settings().limits.max_upload_bytes + request_limits.MAX_UNPACKED_BYTES

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_READ:
            raise _refused("It has a header of absurd size.", "Pack it again.")
        if self._raw.tell() > self._end:
            raise _too_large()
        return bytes(self._raw.read(_MAX_READ if size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > self._end:
            raise _too_large()
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        return int(self._raw.tell())

    def seekable(self) -> bool:
        return True


def _checked_members(archive: _Archive) -> dict[PurePosixPath, _Member]:
    members: dict[PurePosixPath, _Member] = {}
    total = 0
    for number, member in enumerate(archive.members(), 1):
        if number > request_limits.MAX_ARCHIVE_FILES:
            raise TooLarge(
                f"{_FIELD}: It holds more than {request_limits.MAX_ARCHIVE_FILES} files. Split it."
            )
        if member is None:
            continue
        if member.path in members:
            raise _refused(f"{member.name!r} is in it twice.", "Pack every file once.")
        members[member.path] = member
        total += member.size
        if total > request_limits.MAX_UNPACKED_BYTES:
            raise _too_large()
    return members


# --- the manifest ---


def _manifest(
    archive: _Archive, members: dict[PurePosixPath, _Member]
) -> tuple[list[VideoSpec], PurePosixPath]:
    found = [p for p in members if p.name in _MANIFESTS and len(p.parts) <= 2]
    found = [p for p in found if len(p.parts) == 1] or found
    if len(found) != 1:
        many = "several manifests" if found else "no manifest"
        raise _refused(f"There is {many} in it.", "Put one manifest.jsonl or manifest.csv at its top.")
    with archive.open(members[found[0]]) as stream:
        raw = stream.read(_MAX_MANIFEST + 1)
    if len(raw) > _MAX_MANIFEST:
        raise TooLarge(f"{found[0]}: The manifest is larger than {_MAX_MANIFEST} bytes. Split the archive.")
    return parse_manifest(raw, found[0].name), found[0].parent


def parse_manifest(raw: bytes, name: str) -> list[VideoSpec]:
    """The videos that a manifest names; ``name`` says by its ending whether it is CSV or JSONL.

    Raises:
        InvalidInput: naming the line and the hint.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput.at(name, f"Byte {error.start} is not UTF-8.", "Save it as UTF-8.") from None
    videos = list((_csv if name.endswith(".csv") else _jsonl)(text, name))
    if not videos:
        raise InvalidInput.at(name, "It names no video.", "Write one video a line.")
    return videos


def _jsonl(text: str, name: str) -> Iterator[VideoSpec]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidInput.at(
                f"{name}:{number}", "The line is not JSON.", "Write one object a line."
            ) from None
        yield _video(_with_metadata(fields), f"{name}:{number}")


def _with_metadata(fields: Any) -> Any:
    """Fields that we do not know are the user's own: they become metadata, as columns of a CSV do."""
    if not isinstance(fields, dict) or not isinstance(fields.get("metadata") or {}, dict):
        return fields  # refused as it is, by name
    own = {key: value for key, value in fields.items() if key not in VideoSpec.model_fields}
    known = {key: value for key, value in fields.items() if key in VideoSpec.model_fields}
    return known | ({"metadata": own | (fields.get("metadata") or {})} if own else {})


def _csv(text: str, name: str) -> Iterator[VideoSpec]:
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", strict=True)
    merged: dict[str, dict[str, Any]] = {}
    lines: dict[str, int] = {}
    try:
        if reader.fieldnames is None or "uri" not in reader.fieldnames:
            raise InvalidInput.at(
                f"{name}:1", "There is no column 'uri'.", "Name the columns in the first line."
            )
        for row in reader:
            if "" in row:
                raise InvalidInput.at(
                    f"{name}:{reader.line_num}", "There are more cells than columns.", "Quote commas."
                )
            fields = _csv_fields(row)
            known = merged.setdefault(fields["uri"], fields)
            lines.setdefault(fields["uri"], reader.line_num)
            if known is not fields:
                known["captions"] += fields.pop("captions")
                if any(known.get(key) != value for key, value in fields.items()):
                    raise InvalidInput.at(
                        f"{name}:{reader.line_num}",
                        f"{fields['uri']!r} was given differently in line {lines[fields['uri']]}.",
                        "Repeat the same id, split and metadata, or leave the row out.",
                    )
    except csv.Error as error:
        raise InvalidInput.at(
            f"{name}:{reader.line_num}", f"Not a CSV line: {error}.", "Quote the cells."
        ) from None
    for uri, fields in merged.items():
        yield _video(fields, f"{name}:{lines[uri]}")


def _csv_fields(row: dict[str, str | None]) -> dict[str, Any]:
    cells = {key: (value or "").strip() for key, value in row.items()}
    captions = cells.pop("captions", "") or cells.pop("caption", "")
    fields: dict[str, Any] = {
        "uri": cells.pop("uri"),
        "captions": [c for c in captions.split("|") if c.strip()],
    }
    for key in ("id", "split"):
        if value := cells.pop(key, ""):
            fields[key] = value
    metadata = {key: value for key, value in cells.items() if value and key != "caption"}
    return fields | ({"metadata": metadata} if metadata else {})


def _video(fields: Any, place: str) -> VideoSpec:
    try:
        return VideoSpec.model_validate(fields)
    except ValidationError as error:
        wrong = InvalidInput.from_pydantic(error.errors()).errors[0]
        raise InvalidInput.at(
            f"{place}.{wrong.field}", wrong.message, "Write it as in POST /tasks."
        ) from None


# --- writing ---


def _write(
    archive: _Archive,
    members: dict[PurePosixPath, _Member],
    videos: list[VideoSpec],
    base: PurePosixPath,
    folder: Path,
) -> None:
    budget = request_limits.MAX_UNPACKED_BYTES
    wanted: dict[PurePosixPath, None] = {}
    for number, video in enumerate(videos):
        path = base / _safe(video.uri, f"videos[{number}].uri")
        if path not in members:
            raise InvalidInput.at(
                f"videos[{number}].uri",
                f"{video.uri!r} is not in the archive.",
                "Name a file beside the manifest.",
            )
        wanted[path] = None
    for path in (path for path in members if path in wanted):  # in the archive's order: gzip cannot jump back
        target = folder.joinpath(*path.parts)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(members[path]) as source, target.open("xb") as sink:
                while block := source.read(_BLOCK):
                    budget -= len(block)
                    if budget < 0:
                        raise _too_large()
                    sink.write(block)
                sink.flush()
                os.fsync(sink.fileno())
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise _refused(
                f"{str(path)!r} collides with another name in it.", "Rename one of them."
            ) from None
    # The task survives a power cut once it is stored, and so do its videos.
    for inside in {folder.joinpath(*above.parts) for path in wanted for above in path.parents}:
        sync(inside)
    sync(folder.parent)


def _safe(name: str, field: str = _FIELD) -> PurePosixPath:
    """The path a name means inside the archive; refused when it could mean anything else."""
    path = PurePosixPath(name)
    wrong = (
        not path.parts
        or path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or ":" in path.parts[0]
        or any(ord(c) < 32 or ord(c) == 127 or "\ud800" <= c <= "\udfff" for c in name)
        or any(len(part.encode()) > 255 for part in path.parts)
        or len(name) > 1024
    )
    if wrong:
        raise InvalidInput.at(
            field, f"{name[:200]!r} is not a safe path.", "Use relative paths without '..'."
        )
    return path


def _refused(message: str, hint: str) -> InvalidInput:
    return InvalidInput.at(_FIELD, message, hint)


def _too_large() -> TooLarge:
    return TooLarge(f"{_FIELD}: It unpacks to more than {request_limits.MAX_UNPACKED_BYTES} bytes. Split it.")
