"""Store the files of resumable uploads until a task uses them or they expire.

An upload has two files in the uploads' ``incoming`` folder: ``<id>.<size>`` with the bytes received so far, and
``<id>.json`` with its name. The first file's length is the offset, so an upload survives any restart.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from index.files.durable_files import sync
from service.access.audit_log import record_event
from service.core import errors, request_limits
from service.core.settings import settings


class OffsetMismatch(errors.Conflict, title="Offset mismatch"):
    """A request's bytes do not begin where the stored bytes end."""


class UploadLocked(errors.CinestrataError, status=423, title="Locked"):
    """Another request is writing to the upload."""


EXPIRES_AFTER = timedelta(days=3)  # since the last byte

_ID = re.compile(r"upl_[0-9a-f]{32}")
_room_lock = threading.Lock()
_FILE_NAME = re.compile(r"(upl_[0-9a-f]{32})\.(\d{1,16}|json)")
_DISK_MARGIN_BYTES = 512 * 1024**2  # kept free for the catalog and the index


@dataclass(frozen=True)
class Upload:
    """A file that a client sends in parts."""

    id: str
    name: str  # path of the file on the client's machine, relative to the selected folder; untrusted
    metadata: str  # the Upload-Metadata header from creation
    size: int

    @property
    def path(self) -> Path:
        """File with the bytes received so far."""
        return _folder() / f"{self.id}.{self.size}"

    @property
    def received(self) -> int:
        """Number of bytes received; raise NotFound."""
        return self._status().st_size

    @property
    def expires_at(self) -> datetime:
        """When the upload may be deleted; every received byte extends it."""
        return datetime.fromtimestamp(self._status().st_mtime, UTC) + EXPIRES_AFTER

    def _status(self) -> os.stat_result:
        try:
            return self.path.stat()
        except FileNotFoundError:
            raise _unknown(self.id) from None


def create_upload(name: str, metadata: str, size: int) -> Upload:
    """Create an empty upload; raise TooLarge, also for too many, InsufficientStorage, DataFolderNotWritable."""
    if size > request_limits.MAX_VIDEO_BYTES:
        raise errors.TooLarge(
            f"The file has {size} bytes; a video may have at most {request_limits.MAX_VIDEO_BYTES}. Shorten or "
            "compress it."
        )
    upload = Upload(f"upl_{secrets.token_hex(16)}", name, metadata, size)
    try:
        with _room_lock:  # concurrent requests must not take the same room
            _require_room(size)
            upload.path.touch()
        content = json.dumps({"name": name, "metadata": metadata, "size": size})
        (_folder() / f"{upload.id}.json").write_text(content, encoding="utf-8")
    except OSError as error:
        _remove(upload.path.name, f"{upload.id}.json")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise errors.InsufficientStorage(size, shutil.disk_usage(_folder()).free) from error
        raise errors.DataFolderNotWritable(upload.path.parent, error) from error
    return upload


def find_upload(upload_id: str) -> Upload:
    """Look up an upload; raise NotFound."""
    if not _ID.fullmatch(upload_id):
        raise _unknown(upload_id)
    try:
        stored = json.loads((_folder() / f"{upload_id}.json").read_bytes())
        upload = Upload(upload_id, stored["name"], stored["metadata"], stored["size"])
    except (OSError, ValueError, KeyError):  # a power failure left the file incomplete
        raise _unknown(upload_id) from None
    if not upload.path.is_file():
        raise _unknown(upload_id)
    return upload


def delete_upload(upload: Upload) -> None:
    """Delete an upload and its bytes; raise NotFound, or UploadLocked while a request writes to it."""
    try:
        with upload.path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(upload.path.name, f"{upload.id}.json")
    except FileNotFoundError:
        raise _unknown(upload.id) from None
    except BlockingIOError:
        raise UploadLocked("A request is writing to this upload; end it first, or try again.") from None


def available_bytes() -> int:
    """Compute how many bytes new uploads may have in total; may be negative."""
    _, declared, free = _read_usage()
    return min(request_limits.MAX_PENDING_BYTES - declared, free)


def sweep_incoming() -> list[str]:
    """Delete uploads without a new byte for ``EXPIRES_AFTER``, and what deleted ones left; returns their IDs."""
    expired_before = time.time() - EXPIRES_AFTER.total_seconds()
    files: dict[str, list[os.DirEntry[str]]] = {}
    for entry in os.scandir(_folder()):
        if name := _FILE_NAME.fullmatch(entry.name):
            files.setdefault(name[1], []).append(entry)
    removed = []
    for upload_id, entries in files.items():
        with suppress(OSError), ExitStack() as stack:  # another process is deleting it or writing to it
            if max(entry.stat().st_mtime for entry in entries) >= expired_before:
                continue
            for entry in entries:
                if not entry.name.endswith(".json"):
                    file = stack.enter_context(open(entry.path, "r+b"))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(*(entry.name for entry in entries))
            removed.append(upload_id)
    return removed


def _folder() -> Path:
    folder = settings().uploads_dir / "incoming"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.DataFolderNotWritable(folder, error) from error
    return folder


def _require_room(size: int) -> None:
    """Raise TooLarge or InsufficientStorage if there is no room for another upload."""
    uploads, declared, free = _read_usage()
    hint = "Add their videos to a domain first, or delete some of them."
    if uploads >= request_limits.MAX_PENDING_UPLOADS:
        raise errors.TooLarge(f"There are {uploads} uploads not used by a task yet. {hint}")
    if declared + size > (limit := request_limits.MAX_PENDING_BYTES):
        raise errors.TooLarge(f"Uploads not used by a task yet may take {limit} bytes in total. {hint}")
    if size > free:
        raise errors.InsufficientStorage(size, max(0, free))


def _read_usage() -> tuple[int, int, int]:
    """Read the number of pending uploads, their bytes when complete, and the free bytes for others, maybe negative."""
    uploads = declared = 0
    free = shutil.disk_usage(_folder()).free - _DISK_MARGIN_BYTES
    for entry in os.scandir(_folder()):
        name = _FILE_NAME.fullmatch(entry.name)
        if name and name[2].isdigit():
            with suppress(FileNotFoundError):  # deleted meanwhile
                size = int(name[2])
                free -= max(0, size - entry.stat().st_size)
                declared += size
                uploads += 1
    return uploads, declared, free


def _remove(*names: str) -> None:
    for name in sorted(names, reverse=True):  # an upload without the JSON file does not exist
        (_folder() / name).unlink(missing_ok=True)


def _unknown(upload_id: str) -> errors.NotFound:
    return errors.NotFound(
        f"There is no upload {upload_id[:60]!r}; it has expired, was deleted, or belongs to a task. Create it again."
    )


class UploadWriter:
    """Exclusive write access to an upload, until :meth:`finish` or :meth:`interrupt`.

    If the process is killed, the kernel releases the lock, and the bytes written so far stay. Raises NotFound,
    UploadLocked while another request writes to the upload, or OffsetMismatch if not ``offset`` bytes are stored.
    """

    def __init__(self, upload: Upload, offset: int) -> None:
        self._upload = upload
        self._start = self.offset = offset
        try:
            self._file = upload.path.open("r+b", buffering=0)
        except FileNotFoundError:
            raise errors.NotFound(f"The upload {upload.id} was deleted.") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (stored := upload.received) != offset:
                message = f"Upload-Offset: {stored} bytes are stored, not {offset}. Continue at {stored}."
                raise OffsetMismatch(message, headers={"Upload-Offset": str(stored)})
        except BaseException as error:
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise UploadLocked("Another request is writing to this upload; try again.") from None
            raise
        self._file.seek(stored)

    def write(self, data: bytes) -> None:
        """Append bytes; raise TooLarge, which writes nothing, or Unavailable for a full disk, which keeps what fits."""
        if self.offset + len(data) > self._upload.size:
            raise errors.TooLarge(
                f"The request is longer than the missing part; the upload has {self._upload.size} bytes."
            )
        view = memoryview(data)
        try:
            while view:
                written = self._file.write(view)
                self.offset += written
                view = view[written:]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise errors.Unavailable("The server's disk is full.", 60) from error
            raise

    def finish(self) -> None:
        """End a request; if the upload is complete, make it durable."""
        with self._file:
            if self.offset == self._upload.size:
                os.fsync(self._file.fileno())
                sync(self._upload.path.parent)
                if self._start < self.offset or not self.offset:  # not for a repeated request
                    details = {"name": self._upload.name, "bytes": self._upload.size}
                    record_event("upload.finish", self._upload.id, details)

    def interrupt(self) -> None:
        """End an incomplete request, keeping its bytes."""
        self._file.close()
