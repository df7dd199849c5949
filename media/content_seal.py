"""Seals: a checksum at the end of a file whose format ignores further bytes, such as JPEG and zip.

The checksum travels with the file when it is renamed or copied, and needs no row in the catalog.
"""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

_MARK = b"\ncinestrata-sha256:"
_SEAL_BYTES = len(_MARK) + 64  # with the hexadecimal SHA-256


def append_seal(path: Path) -> None:
    """Append the SHA-256 of a file to it."""
    with path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(_MARK + digest.encode())


def is_intact(path: Path) -> bool:
    """Whether a file ends with the seal of its content.

    Raises:
        OSError: The file cannot be read, or is a pipe or a device, which may block or have no end.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    data = path.read_bytes()
    digest = hashlib.sha256(data[:-_SEAL_BYTES]).hexdigest().encode()
    return data[-_SEAL_BYTES:] == _MARK + digest
