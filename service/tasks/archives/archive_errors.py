"""Errors about an uploaded archive, and the safety check of its paths."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath

from service.core import request_limits
from service.core.errors import InvalidInput, TooLarge

__all__ = ["ARCHIVE_FIELD", "archive_too_large", "invalid_archive", "safe_path"]

ARCHIVE_FIELD = "archive"


def invalid_archive(message: str, hint: str) -> InvalidInput:
    """Return the error of an archive that cannot be used."""
    return InvalidInput.at(ARCHIVE_FIELD, message, hint)


def archive_too_large() -> TooLarge:
    """Return the error of an archive that unpacks to too many bytes."""
    return TooLarge(
        f"{ARCHIVE_FIELD}: It unpacks to more than {request_limits.MAX_UNPACKED_BYTES} bytes. Split it."
    )


def safe_path(name: str, field: str = ARCHIVE_FIELD) -> PurePosixPath:
    """Return the path of a file inside an archive.

    Args:
        name: Path as the archive or the manifest states it.
        field: Field that an error names.

    Raises:
        InvalidInput: the path is absolute, leaves the archive, is ambiguous or is too long.
    """
    path = PurePosixPath(name)
    is_unsafe = (
        not path.parts
        or path.is_absolute()
        or ".." in path.parts
        or "\\" in name
        or ":" in path.parts[0]
        or any(unicodedata.category(c) in ("Cc", "Cs") for c in name)
        or any(len(part.encode()) > 255 for part in path.parts)
        or len(name) > 1024
    )
    if is_unsafe:
        raise InvalidInput.at(
            field, f"{name[:200]!r} is not a safe path.", "Use relative paths without '..'."
        )
    return path
