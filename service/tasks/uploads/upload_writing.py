"""Writing of received bytes at the end of an upload, by one request at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from typing import Any

from index.files.durable_files import sync
from service.audit.audit_log import record_event
from service.core.errors import NotFound, TooLarge, Unavailable
from service.tasks.uploads.upload_store import ChecksumMismatch, OffsetMismatch, Upload, UploadLocked

__all__ = ["UploadWriter"]


class UploadWriter:
    """Exclusive access to the end of an upload, until :meth:`finish` or :meth:`interrupt`.

    The kernel releases the lock if the process is killed; bytes written until then stay.

    Args:
        upload: The upload.
        offset: Number of bytes that the client assumes to be stored.
        checksum: Name of an algorithm of :mod:`hashlib` and the digest of the bytes that follow; None: not verified.

    Raises:
        NotFound: the upload was deleted.
        UploadLocked: another request writes to the upload.
        OffsetMismatch: another number of bytes is stored.
    """

    def __init__(self, upload: Upload, offset: int, checksum: tuple[str, bytes] | None = None) -> None:
        self._upload = upload
        self._start = self.offset = offset
        self._digest: Any = hashlib.new(checksum[0], usedforsecurity=False) if checksum else None
        self._expected = checksum[1] if checksum else b""
        try:
            self._file = upload.path.open("r+b", buffering=0)
        except FileNotFoundError:
            raise NotFound(f"The upload {upload.id} was deleted.") from None
        try:
            self._lock_at(offset)
        except BaseException:
            self._file.close()
            raise

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            TooLarge: the upload would become larger than its size; none of the bytes is written.
            Unavailable: the disk is full; the bytes that fit are kept.
        """
        if self.offset + len(data) > self._upload.size:
            raise TooLarge(
                f"The request has more bytes than are missing; the upload has {self._upload.size} bytes."
            )
        view = memoryview(data)
        try:
            while view:
                written = self._file.write(view)
                self.offset += written
                if self._digest is not None:
                    self._digest.update(view[:written])
                view = view[written:]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Unavailable("The disk of the server is full.", 60) from error
            raise

    def finish(self) -> None:
        """Verify the written bytes, and make a complete upload durable.

        Raises:
            ChecksumMismatch: the bytes differ from the checksum; they are discarded.
        """
        with self._file:
            if self._digest is not None and self._digest.digest() != self._expected:
                self._discard()
                raise ChecksumMismatch("The bytes differ from Upload-Checksum; send them again.")
            self._upload.unverified_path.unlink(missing_ok=True)
            if self.offset == self._upload.size:
                os.fsync(self._file.fileno())
                sync(self._upload.path.parent)
                if self._start < self.offset or not self.offset:  # not for a repeated request
                    details = {"name": self._upload.name, "bytes": self._upload.size}
                    record_event("upload.finish", self._upload.id, details)

    def interrupt(self) -> None:
        """End after an incomplete request: bytes are kept, except those with a checksum."""
        with self._file:
            if self._digest is not None:
                self._discard()

    def _discard(self) -> None:
        self._file.truncate(self._start)
        self.offset = self._start
        self._upload.unverified_path.unlink(missing_ok=True)

    def _lock_at(self, offset: int) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UploadLocked("Another request writes to this upload; try again.") from None
        stored = self._upload.received
        if stored != offset:
            raise OffsetMismatch(
                f"Upload-Offset: {stored} bytes are stored, not {offset}. Continue at {stored}.",
                headers={"Upload-Offset": str(stored)},
            )
        # Bytes of a killed process that were not verified.
        self._file.truncate(stored)
        self._upload.unverified_path.unlink(missing_ok=True)
        self._file.seek(stored)
        if self._digest is not None:
            self._upload.unverified_path.write_text(str(offset))
