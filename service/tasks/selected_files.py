"""Files that a person selected for an upload, and the assignment of paths in a table to them."""

from __future__ import annotations

import io
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import BinaryIO

from cinestrata_schemas.uploads import LocalFile, LocalText, OmittedPath
from media.video_limits import VIDEO_SUFFIXES
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES
from service.tasks.manifests.sidecar_captions import SIDECAR_SUFFIXES, is_hidden, subtitle_aliases
from service.tasks.manifests.video_tables import TYPED_SUFFIXES

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


_TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
_ARCHIVE_SUFFIXES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")


class SelectedFiles:
    """The selected files by normalized path.

    Attributes:
        files: Files that can be uploaded.
        skipped: Files that cannot be uploaded.
    """

    def __init__(self, files: Sequence[LocalFile], texts: Sequence[LocalText]) -> None:
        self.files: dict[str, LocalFile] = {}
        self.skipped: list[OmittedPath] = []
        self._texts = {normalize_path(text.path): text.content for text in texts}
        self._aliases = subtitle_aliases(self._texts)
        for file in files:
            path = normalize_path(file.path)
            if not path:
                self._skip(file, "no file name")
            elif path in self.files:
                self._skip(file, "selected twice")
            elif is_hidden(path):
                self._skip(file, "hidden file")
            else:
                self.files[path] = file

    def choose_table(self, path: str | None) -> str | None:
        """Return the path of the caption table; None if there is none.

        Args:
            path: Path that the client names; None searches by name.

        Raises:
            InvalidInput: the named table was not sent or is not a text, or several files can be the table.
        """
        if path is not None:
            if normalize_path(path) not in self._texts:
                raise InvalidInput.at(
                    "table", f"{path!r} is not one of the texts.", "Select the table again."
                )
            if not path.lower().endswith(_TABLE_SUFFIXES):
                raise InvalidInput.at(
                    "table",
                    f"{path!r} ends in none of {', '.join(_TABLE_SUFFIXES)}.",
                    "Save the caption table as CSV or JSONL, and select it again.",
                )
            return normalize_path(path)
        tables = [each for each in self._texts if each.lower().endswith(_TABLE_SUFFIXES)]
        named = [each for each in tables if PurePosixPath(each).name in MANIFEST_NAMES]
        found = [each for each in named if PurePosixPath(each).stem == "manifest"] or named or tables
        if len(found) > 1:
            raise InvalidInput.at(
                "table",
                f"Several files can be the caption table: {', '.join(sorted(found)[:5])}.",
                "Select one of them as the caption table.",
            )
        return found[0] if found else None

    def open_text(self, path: str) -> BinaryIO | None:
        """Open a sidecar file or the table; None if there is none."""
        content = self._texts.get(path, self._texts.get(self._aliases.get(path, "")))
        return None if content is None else io.BytesIO(content)

    def video_paths(self, named: set[str]) -> list[str]:
        """Return the paths of the videos in order, and skip all other files.

        Args:
            named: Paths that the table names; they are videos with any ending.
        """
        stems = {str(PurePosixPath(path).with_suffix("")) for path in self.files if _is_video(path)}
        videos = []
        for path, file in self.files.items():
            if not _is_video(path) and path not in named:
                if path not in self._texts and not _is_sidecar(path, stems):
                    self._skip(file, _reason(path))
            elif file.size == 0:
                self._skip(file, "empty file")
            elif file.size > request_limits.MAX_VIDEO_BYTES:
                self._skip(file, f"larger than {request_limits.MAX_VIDEO_BYTES / 1024**3:g} GiB")
            else:
                videos.append(path)
        return sorted(videos)

    def _skip(self, file: LocalFile, reason: str) -> None:
        self.skipped.append(OmittedPath(path=file.path, reason=reason))


def _is_video(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in VIDEO_SUFFIXES


def _is_sidecar(path: str, stems: set[str]) -> bool:
    return any(path.endswith(suffix) and path.removesuffix(suffix) in stems for suffix in SIDECAR_SUFFIXES)


def _reason(path: str) -> str:
    lowered = path.lower()
    if lowered.endswith(_ARCHIVE_SUFFIXES):
        return "archive: select it alone, or unpack it"
    if lowered.endswith(TYPED_SUFFIXES):
        return "table of a spreadsheet: save it as CSV"
    return "not a video"
