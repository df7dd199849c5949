"""Folders, and archives in memory, with given files."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files, whose folders are made, and return their folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def pack_zip(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    """Return a zip without the present time: equal files give equal bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as opened:
        for name, content in files.items():
            opened.writestr(zipfile.ZipInfo(name), content, method)
    made.seek(0)
    return made


def pack_tar(
    files: Mapping[str, bytes],
    mode: str = "w:gz",
    *,
    members: Sequence[tarfile.TarInfo] = (),
    headers: Mapping[str, dict[str, str]] | None = None,
    **options: Any,
) -> io.BytesIO:
    """Return a tar of members without content, then of files, some of them with pax headers of their own."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode, **options) as opened:
        for member in members:
            opened.addfile(member)
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), (headers or {}).get(name, {})
            opened.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


def tar_member(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
    """Return a member of a tar without content."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info
