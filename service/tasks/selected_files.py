"""Sort the files selected for an upload into caption tables, sidecar files and videos."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import BinaryIO

from cinestrata_schemas.uploads import LocalFile, LocalText, OmittedPath
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.caption_tables import TABLE_SUFFIXES, find_tables
from service.tasks.manifests.file_matching import normalize_path
from service.tasks.manifests.manifest_parser import CAPTION_TABLE_NAMES, MANIFEST_NAMES
from service.tasks.manifests.side_file_names import SideFileNames
from service.tasks.manifests.video_files import find_omission, is_video_name
from service.tasks.manifests.video_tables import TYPED_SUFFIXES

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
        for file in files:
            path = normalize_path(file.path)
            if not path:
                self._skip(file, "no file name")
            elif path in self.files:
                self._skip(file, "selected twice")
            elif omission := find_omission(path):
                self._skip(file, f"{omission[1]} file")
            else:
                self.files[path] = file
        self._names = SideFileNames({**self.files, **self._texts})

    def choose_tables(self, path: str | None) -> list[str]:
        """Choose the caption tables, and return their paths.

        Args:
            path: Path given by the client; None: look for tables. A manifest, if there is one, lists all videos.

        Raises:
            InvalidInput: The named table was not sent or is not text, or there are several manifests.
        """
        if path is not None:
            if normalize_path(path) not in self._texts:
                raise InvalidInput.at(
                    "table", f"{path!r} is not one of the text files.", "Select the table again."
                )
            if not path.lower().endswith(TABLE_SUFFIXES):
                raise InvalidInput.at(
                    "table",
                    f"{path!r} ends in none of {', '.join(TABLE_SUFFIXES)}.",
                    "Save the caption table as CSV or JSON, and select it again.",
                )
            return [normalize_path(path)]
        tables = [
            each for each in find_tables({**self._texts, **self.files}, TABLE_SUFFIXES) if each in self._texts
        ]
        names = set(MANIFEST_NAMES) - set(CAPTION_TABLE_NAMES)
        found = [each for each in tables if PurePosixPath(each).name in names]
        if len(found) > 1:
            raise InvalidInput.at(
                "table",
                f"Several files can be the manifest: {', '.join(sorted(found)[:5])}.",
                "Select one of them as the caption table.",
            )
        return found or sorted(tables)

    def find(self, name: str) -> list[str]:
        """Find the sidecar files that are read under a name, best first."""
        return [path for path in self._names.find(name) if path in self._texts]

    def open_text(self, path: str) -> BinaryIO:
        """Open a sidecar file or the table."""
        return io.BytesIO(self._texts[path])

    def video_paths(self, named: set[str]) -> list[str]:
        """List the paths of the videos in order, and mark all other files as skipped.

        Args:
            named: Paths named by the table; these are videos whatever their extension.
        """
        videos = []
        for path, file in self.files.items():
            if not is_video_name(path) and path not in named:
                if path not in self._texts and path not in self._names.side_files:
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


def _reason(path: str) -> str:
    lowered = path.lower()
    if lowered.endswith(_ARCHIVE_SUFFIXES):
        return "archive: select it alone, or unpack it"
    if lowered.endswith(TYPED_SUFFIXES):
        return "table of a spreadsheet: save it as CSV"
    return "not a video"
