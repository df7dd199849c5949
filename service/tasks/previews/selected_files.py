"""Files on the machine of a client: videos, caption tables and sidecar files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import BinaryIO

from cinestrata_schemas.uploads import LocalFile, LocalText, OmittedPath
from media.video_limits import VIDEO_SUFFIXES
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES
from service.tasks.manifests.sidecar_captions import SIDECAR_SUFFIXES, is_hidden, subtitle_aliases
from service.tasks.manifests.typed_table import TYPED_SUFFIXES
from service.tasks.previews.file_matching import normalize_path

__all__ = ["SelectedFiles"]

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
