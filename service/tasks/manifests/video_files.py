"""Decide which files are a folder's videos: the same for local folders, archives, object stores and uploads."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from media.video_limits import VIDEO_SUFFIXES

SYSTEM, HIDDEN, PARTIAL, REPEATED = "system", "hidden", "partly downloaded", "repeated or circular"

# In lower case. A rule would also match "@home" or "#1 goals". Names with a dot at the start are hidden anyway.
_SYSTEM_NAMES = frozenset(
    [
        "@eadir",
        "@recently-snapshot",
        "@recycle",
        "#recycle",
        "#snapshot",
        "$recycle.bin",
        "__macosx",
        "lost+found",
    ]
) | {"system volume information"}
# yt-dlp's streams until they are merged, such as clip.f137.mp4 and clip.temp.mp4, and what programs append to names.
_PARTIAL_NAME = re.compile(
    r".+\.(temp|f\d{2,}(-\w+)*|f(hls|dash|http)[\w-]*)\.[^.]+"
    r"|.+\.(?i:part|part-frag\d+|partial|crdownload|opdownload|download|filepart|aria2|ytdl|!qb|!ut)",
    re.DOTALL,
)


def is_video_name(path: str) -> bool:
    """Check whether a path has a video file extension."""
    return PurePosixPath(path).suffix.lower() in VIDEO_SUFFIXES


def find_omission(path: str) -> tuple[str, str] | None:
    """Find out whether a path is left out of its folder, and why; None if it is not.

    Returns:
        The file, or the outermost folder that is left out, which ends with a slash; and the reason.
    """
    parts = path.split("/")
    for depth, part in enumerate(parts, 1):
        is_system = part.casefold() in _SYSTEM_NAMES
        if is_system or (part.startswith(".") and part.strip(".")):
            omitted = "/".join(parts[:depth]) + ("/" if depth < len(parts) else "")
            return omitted, SYSTEM if is_system else HIDDEN
    return (path, PARTIAL) if _PARTIAL_NAME.fullmatch(parts[-1]) else None


def find_videos(paths: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Find the videos among a folder's files, and what is left out although it looks like one, with the reasons."""
    videos: list[str] = []
    omitted: dict[str, str] = {}
    for path in paths:
        omission = find_omission(path)
        if omission is None and is_video_name(path):
            videos.append(path)
        elif omission is not None and (omission[1] == PARTIAL or is_video_name(path)):
            omitted.setdefault(*omission)
    return videos, omitted
