"""Assignment of the paths in a caption table to selected files."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, islice

__all__ = ["FileMatcher", "normalize_path"]

_MAX_FOLDERS = 64  # of a row that names a file by the end of its path; each folder is one lookup


def normalize_path(path: str) -> str:
    """Return a path with composed characters (NFC), slashes, and without a leading ``./`` or ``/``.

    Some systems list names with decomposed characters, while tables contain composed ones.
    """
    parts = unicodedata.normalize("NFC", path).replace("\\", "/").split("/")
    return "/".join(part for part in parts if part not in ("", "."))


class FileMatcher:
    """Finds the file that a row of a table names.

    Neither the browser nor the table knows the folder of the other, so the paths are compared from their ends: a row
    ``clips/a.mp4`` names the file ``kitchen/clips/a.mp4``, and a row ``/data/clips/a.mp4`` the file ``a.mp4``, if no
    other file fits.

    Args:
        paths: Paths of the files from :func:`normalize_path`.
        folder: Folder of the table, which is searched first.
    """

    def __init__(self, paths: Sequence[str], folder: str) -> None:
        self._paths = set(paths)
        self._folder = folder
        # Paths with the same end are neighbors in this order, so that a row is compared with few of them.
        self._reversed = sorted((_reverse(path), path) for path in paths)

    def find(self, uri: str) -> list[str]:
        """Return files that a row can name: one, if it is clear; two, if there are several."""
        wanted = normalize_path(uri)
        in_folder = f"{self._folder}/{wanted}" if self._folder else wanted
        for path in (in_folder, wanted):
            if path in self._paths:
                return [path]
        return list(islice(chain(self._longer_paths(wanted), self._shorter_paths(wanted)), 2))

    def _longer_paths(self, wanted: str) -> Iterator[str]:
        """Yield files whose path ends with a path."""
        start = _reverse(wanted)
        for position in range(bisect_left(self._reversed, (start,)), len(self._reversed)):
            found, path = self._reversed[position]
            if not found.startswith(start):
                break
            yield path

    def _shorter_paths(self, wanted: str) -> Iterator[str]:
        """Yield files whose path is the end of a path."""
        wanted = "/".join(["", *wanted.split("/")[1:][-_MAX_FOLDERS:]])
        while wanted := wanted.partition("/")[2]:
            if wanted in self._paths:
                yield wanted


def _reverse(path: str) -> str:
    """Return the parts of a path from the last to the first, each with a slash behind it."""
    return "".join(f"{part}/" for part in reversed(path.split("/")))
