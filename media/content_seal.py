"""Seals: a checksum at the end of a file whose format ignores further bytes, such as JPEG and zip.

The checksum travels with the file when it is renamed or copied, and needs no row in the catalog.
"""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Literal

__all__ = ["SealState", "append_seal", "read_seal"]

SealState = Literal["intact", "damaged", "unsealed"]

_MARK = b"\ncinestrata-sha256:"
_DIGEST_CHARS = 64
_SEAL_BYTES = len(_MARK) + _DIGEST_CHARS


def append_seal(path: Path) -> None:
    """Append the SHA-256 of a file to it."""
    with path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(_MARK + digest.encode())


def read_seal(path: Path) -> SealState:
    """Compare a file with its seal.

    Returns:
        ``damaged`` if any byte of the file or of its seal was changed; ``unsealed`` if the file ends without a seal.

    Raises:
        OSError: The file cannot be read, or is a pipe or a device, which may block or have no end.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    data = path.read_bytes()
    content, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
    digest = hashlib.sha256(content).hexdigest().encode()
    if seal == _MARK + digest:
        return "intact"
    # A changed byte spoils the mark or the digest, but not both. A truncated seal still has a part of the mark.
    is_sealed = _MARK[:8] in data[-2 * _SEAL_BYTES :] or seal[len(_MARK) :] == digest
    return "damaged" if is_sealed else "unsealed"
