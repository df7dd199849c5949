"""Paths of videos below the media root and of files made from them, and appended checksums.

A checksum is appended to files whose format ignores trailing bytes, such as JPEG or zip. It travels with a
file that is renamed or copied, and needs no row in the catalog.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.uris import redact_uri
from media.errors import MediaError, UndecidedVideo


def resolve_uri(uri: str, media_root: Path) -> Path:
    """Find the file that a URI names, with symbolic links resolved; raises MediaError.

    The URI is a path relative to the media root, an absolute path inside it, or a ``file://`` URI of such a path.
    """
    text = uri
    if uri.lower().startswith("file:"):
        try:
            parts = urlsplit(uri)
            text = unquote(parts.path, errors="strict")
        except ValueError as error:  # unmatched brackets, or bytes that are not UTF-8
            raise MediaError(f"{uri!r} is not a path; write it without file:// and percent signs") from error
        if parts.query or parts.fragment:
            raise MediaError(
                f"{uri!r} has a ? or # in it; write %3F or %23 if they belong to the name, otherwise leave them out"
            )
        if parts.netloc not in ("", "localhost"):
            raise MediaError(f"{redact_uri(uri)!r} names another machine; give a file below the media root")
    elif "://" in uri:
        raise MediaError(
            f"{redact_uri(uri)!r} is not a local file, and its protocol is not s3, gs, https or http; put the file "
            "below the media root and give its path there"
        )
    if "\0" in text or not text:
        raise MediaError(f"{uri!r} is not a path; give one below the media root")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # such names can be neither stored nor displayed
        raise MediaError(f"{uri!r} is not a path: it is not valid Unicode; rename the file") from error
    root = media_root.resolve()
    try:
        path = (root / text).resolve()
        inside = path.is_relative_to(root)
        regular = inside and path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, or not UTF-8
        raise UndecidedVideo(f"{uri!r} is not a path to follow; check its length and links") from error
    if not inside:
        raise MediaError(f"{uri!r} leads outside the media root; give a path below it")
    if not regular:
        raise UndecidedVideo(f"{uri!r} is not a file below the media root; check the name, or copy it there")
    return path


def content_hash(path: Path) -> str:
    """Compute the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# How pictures become frames: the side of the square to which they are cropped, bicubic, at fractions of pixels; or
# height, width, resize mode (crop at whole pixels, squash or pad) and interpolation (by Pillow's name).
FrameSize = int | tuple[int, int, str, str]


def frame_shape(size: FrameSize) -> tuple[int, int]:
    """Return a frame's height and width."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def frame_cache_path(cache_dir: Path, frames: int, size: FrameSize, content: str) -> Path:
    """Name the cache file of a video's sampled frames."""
    name = str(size) if isinstance(size, int) else "{}x{}-{}-{}".format(*size)
    return cache_dir / f"{frames}x{name}" / f"{content}.npy"


def staged_path(path: Path, pid: int) -> Path:
    """Name the hidden file in the same folder that this machine's process ``pid`` writes and renames to ``path``."""
    return path.with_name(f".{path.stem}.{_process(pid)}.staged{path.suffix}")


def staged_files(pid: int, folder: Path) -> list[Path]:
    """List the files in a folder that this machine's process ``pid`` began to write but did not rename."""
    return list(folder.glob(f".*.{_process(pid)}.staged.*"))


def _process(pid: int) -> str:
    # Machines share the folder, and processes of two containers often have the same ID.
    return f"{os.uname().nodename}-{pid}"


def load_frames(path: Path) -> npt.NDArray[np.uint8]:
    """Read sampled frames from the cache, ``uint8 [M, H, W, 3]``, RGB; raises MediaError."""
    try:
        frames = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise MediaError(f"the sampled frames {path.name} cannot be read; decode the video again") from error
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise MediaError(f"{path.name} contains no sampled frames; delete it and decode the video again")
    return np.asarray(frames)


_MARK = b"\ncinestrata-sha256:"
_MARK_BYTES = len(_MARK) + 64  # with the hexadecimal SHA-256


def append_checksum(path: Path) -> None:
    """Append a file's SHA-256 to it."""
    with path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(_MARK + digest.encode())


def is_intact(path: Path) -> bool:
    """Check whether a file ends with the checksum of its content; raise OSError, also for pipes and devices."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    data = path.read_bytes()
    digest = hashlib.sha256(data[:-_MARK_BYTES]).hexdigest().encode()
    return data[-_MARK_BYTES:] == _MARK + digest
