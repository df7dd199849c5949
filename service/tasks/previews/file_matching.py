"""Assignment of the paths in a caption table to selected files."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import PurePosixPath

__all__ = ["FileMatcher", "normalize_path"]


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
        self._by_name: dict[str, list[str]] = {}
        for path in paths:
            self._by_name.setdefault(PurePosixPath(path).name, []).append(path)

    def find(self, uri: str) -> list[str]:
        """Return the files that a row can name: one, if it is clear."""
        wanted = normalize_path(uri)
        in_folder = f"{self._folder}/{wanted}" if self._folder else wanted
        for path in (in_folder, wanted):
            if path in self._paths:
                return [path]
        same_name = self._by_name.get(PurePosixPath(wanted).name, [])
        return [path for path in same_name if _is_end(wanted, path) or _is_end(path, wanted)]


def _is_end(end: str, path: str) -> bool:
    return f"/{path}".endswith(f"/{end}")
