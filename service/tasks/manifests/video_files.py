"""Decide which files are a folder's videos, and match the paths and IDs in caption tables to them."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
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


NO_VIDEOS_HINT = "Add a manifest, or videos with an extension such as .mp4, .mov, .mkv, .webm or .avi."

_MAX_FOLDERS = 64  # compared per row that names a file by the end of its path; each folder takes one lookup


def normalize_path(path: str) -> str:
    """Normalize a path: composed characters (NFC), forward slashes, no leading ``./`` or ``/``.

    Some systems list names with decomposed characters, while tables contain composed ones.
    """
    parts = unicodedata.normalize("NFC", path).replace("\\", "/").split("/")
    return "/".join(part for part in parts if part not in ("", "."))


class FileMatcher:
    """Finds the file that a table row names.

    Neither the browser nor the table knows the other's folder, so paths are compared from their ends: if no other file
    fits, ``clips/a.mp4`` names the file ``kitchen/clips/a.mp4``, and ``/data/clips/a.mp4`` names ``a.mp4``. Data set
    IDs are video paths without extension.

    Args:
        paths: Paths of the files; those that are not part of the folder are never found. Spellings that
            :func:`normalize_path` unifies are equal.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._original = {normalize_path(path): path for path in paths if find_omission(path) is None}
        videos = [path for path in self._original if is_video_name(path)]
        self._files = _PathEnds(self._original)
        self._stems: dict[str, list[str]] = defaultdict(list)
        for path in videos:
            self._stems[path.removesuffix(PurePosixPath(path).suffix)].append(path)
        self._ids = _PathEnds(self._stems)

    def find(self, uri: str, folder: str = "") -> list[str]:
        """Find the file that a row names: two files if it is ambiguous, none if nothing matches.

        Args:
            folder: The table's folder, which is searched first.
        """
        wanted = normalize_path(uri)
        found = self._files.find(wanted, folder)
        if not found:
            stems = self._ids.find(wanted, folder)
            found = list(chain.from_iterable(self._stems[stem] for stem in stems))
        if not found and (upload := _UPLOAD_PREFIX.fullmatch(wanted)):
            found = self._files.find(f"{upload['folder']}{upload['name']}", folder)
        return [self._original[path] for path in found[:2]]


# Label Studio stores an uploaded clip.mp4 as 1a2b3c4d-clip.mp4.
_UPLOAD_PREFIX = re.compile(r"(?P<folder>(.*/)?)[0-9a-f]{8}-(?P<name>[^/]+)", re.DOTALL)


class _PathEnds:
    """Finds paths by their ends."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = set(paths)
        # Paths with the same end are neighbors in this order, so a row is compared with only a few.
        self._reversed = sorted((_reverse(path), path) for path in self._paths)

    def find(self, wanted: str, folder: str) -> list[str]:
        in_folder = f"{folder}/{wanted}" if folder else wanted
        for path in (in_folder, wanted):
            if path in self._paths:
                return [path]
        return list(islice(chain(self._longer_paths(wanted), self._shorter_paths(wanted)), 2))

    def _longer_paths(self, wanted: str) -> Iterator[str]:
        """Find files whose path ends with the given one."""
        start = _reverse(wanted)
        for position in range(bisect_left(self._reversed, (start,)), len(self._reversed)):
            found, path = self._reversed[position]
            if not found.startswith(start):
                break
            yield path

    def _shorter_paths(self, wanted: str) -> Iterator[str]:
        """Find files whose path is the end of the given one."""
        wanted = "/".join(["", *wanted.split("/")[1:][-_MAX_FOLDERS:]])
        while wanted := wanted.partition("/")[2]:
            if wanted in self._paths:
                yield wanted


def _reverse(path: str) -> str:
    """List a path's parts from last to first, each followed by a slash."""
    return "".join(f"{part}/" for part in reversed(path.split("/")))
