"""From what a user wrote to a file below the media root, and to the places of what is made from it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from media.errors import MediaError

__all__ = ["content_hash", "frame_cache_path", "load_frames", "resolve_uri", "staged_by", "staged_path"]


def resolve_uri(uri: str, media_root: Path) -> Path:
    """The file that a URI names, symbolic links followed.

    Args:
        uri: a path relative to the media root, an absolute path inside it, or a ``file://`` URI of one.

    Raises:
        MediaError: it leads outside the root, names another host or scheme, or is no regular file.
    """
    text = uri
    if uri.lower().startswith("file:"):
        try:
            parts = urlsplit(uri)
            text = unquote(parts.path, errors="strict")
        except ValueError as error:  # brackets that do not match, or bytes that are not UTF-8
            raise MediaError(f"{uri!r} is not a path; write it without file:// and percent signs") from error
        if parts.query or parts.fragment:
            raise MediaError(
                f"{uri!r} has a ? or # in it; write %3F or %23 where they belong to the name, else leave them out"
            )
        if parts.netloc not in ("", "localhost"):
            raise MediaError(f"{uri!r} names another machine; give a file below the media root")
    elif "://" in uri:
        raise MediaError(f"{uri!r} is not a local file; put it below the media root and give its path there")
    if "\0" in text or not text:
        raise MediaError(f"{uri!r} is not a path")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # such names could neither be stored nor shown
        raise MediaError(f"{uri!r} is not a path: it is no valid Unicode; rename the file") from error
    root = media_root.resolve()
    try:
        path = (root / text).resolve()
        inside = path.is_relative_to(root)
        regular = inside and path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, or not UTF-8
        raise MediaError(f"{uri!r} is not a path that can be followed") from error
    if not inside:
        raise MediaError(f"{uri!r} leads outside the media root; give a path below it")
    if not regular:
        raise MediaError(
            f"{uri!r} is not a file below the media root; check the name, or copy the file there"
        )
    return path


def content_hash(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def frame_cache_path(cache_dir: Path, frames: int, size: int, content: str) -> Path:
    """Where the sampled frames of a content lie, for backbones that want this many of this size."""
    return cache_dir / f"{frames}x{size}" / f"{content}.npy"


def staged_path(path: Path, pid: int) -> Path:
    """Where process ``pid`` writes what shall become ``path``: in the same folder, hidden."""
    return path.with_name(f".{path.stem}.{pid}.staged{path.suffix}")


def staged_by(pid: int, folder: Path) -> list[Path]:
    """What process ``pid`` began to write in a folder and did not finish."""
    return list(folder.glob(f".*.{pid}.staged.*"))


def load_frames(path: Path) -> npt.NDArray[np.uint8]:
    """Sampled frames, ``uint8 [M, size, size, 3]``, RGB.

    Raises:
        MediaError: the file is gone or is no frame cache.
    """
    try:
        frames = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise MediaError(f"the sampled frames {path.name} cannot be read; examine the video again") from error
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise MediaError(f"{path.name} holds no sampled frames; delete it and examine the video again")
    return np.asarray(frames)
