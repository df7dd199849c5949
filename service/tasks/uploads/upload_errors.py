"""Errors of resumable uploads, with the status codes of the tus protocol."""

from __future__ import annotations

from service.core.errors import CinestrataError, Conflict

__all__ = ["ChecksumMismatch", "OffsetMismatch", "UploadLocked"]


class OffsetMismatch(Conflict):
    """The bytes of a request do not begin where the stored bytes end."""

    title = "Offset mismatch"


class UploadLocked(CinestrataError):
    """Another request writes to the upload."""

    status = 423
    title = "Locked"


class ChecksumMismatch(CinestrataError):
    """The bytes of a request differ from their checksum; they were discarded."""

    status = 460
    title = "Checksum mismatch"
