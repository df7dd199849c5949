"""List the videos in a local folder: from its manifest, or from its files with caption tables and sidecars."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NoReturn

from cinestrata_schemas.tasks import VideoSpec
from media.errors import MediaError
from media.sources.media_source import is_source_uri
from media.video_decoder import VideoDecoder
from media.video_limits import VIDEO_SUFFIXES
from service.core.errors import FieldError, InvalidInput
from service.storage.library_paths import UPLOAD_FOLDER
from service.tasks.manifests.caption_tables import CaptionTables, find_tables
from service.tasks.manifests.file_matching import NO_VIDEOS_HINT
from service.tasks.manifests.manifest_lines import check_encoding
from service.tasks.manifests.manifest_parser import (
    CAPTION_TABLE_NAMES,
    MANIFEST_NAMES,
    TYPED_MANIFEST_NAMES,
)
from service.tasks.manifests.side_file_names import SideFileNames
from service.tasks.manifests.sidecar_captions import (
    SideFiles,
    add_caption_from_name,
    add_subtitles,
    is_hidden,
    read_sidecars,
)


@dataclass(frozen=True)
class FolderVideos:
    """The videos in a folder.

    Attributes:
        base: Folder that the URIs are relative to.
        videos: The videos; their files may be missing.
        left_out: Why video files are not listed, by path.
        uploaded: Paths of a library's uploaded files in the folder; not listed, because they belong to their own
            domains.
        without_row: Paths of videos that the folder's caption tables do not mention.
        missing: Why table rows were left out: they match no file, or several.
        formats: Format of each caption table or manifest by its path.
        notes: What else is worth knowing about files: detected encodings, and files that are not used.
    """

    base: Path
    videos: Sequence[VideoSpec]
    left_out: Mapping[str, FieldError]
    uploaded: Sequence[str] = ()
    without_row: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def require_all(self) -> None:
        """Raise InvalidInput if any video file was left out."""
        if self.left_out:
            raise InvalidInput.of(list(self.left_out.values()))


def list_folder_videos(
    path: Path,
    encoding: str | None = None,
    captions_from_names: bool = False,
    root: Path | None = None,
    report_progress: Callable[[], object] = lambda: None,
    typed_tables: bool = False,
) -> FolderVideos:
    """List the videos in a manifest or a folder.

    Without a manifest, captions come from caption tables and sidecar files. Tables found in the folder need not name
    all
    videos: the others get captions from sidecar files. A manifest, or a table given as ``path``, lists all videos. A
    listed video without a transcript gets one from its subtitles.

    Either all subfolders are listed or none. A video file is left out if its name is not Unicode, if it is a broken
    link, or if a sidecar file is invalid, unreadable or outside ``root``.

    A library keeps uploaded files below its media root. They are listed only if a manifest names them, or if ``path``
    is the folder of an upload.

    Args:
        encoding: Encoding of the manifest, and of sidecar files that are not UTF-8. None: UTF-8, and detected.
        captions_from_names: Whether a video without captions gets its file name as one.
        root: Folder that links to manifests and sidecar files must not leave; its own path has no links. None: they may
            lead anywhere.
        typed_tables: Whether a manifest may be a Parquet file or a spreadsheet; only for commands.

    Raises:
        InvalidInput: The manifest is invalid or outside ``root``, the folder has no videos, or all are left out.
        OSError: The folder, a subfolder, or the manifest cannot be read.
    """
    manifest = path if path.is_file() else _find_full_manifest(path)
    base = path if manifest is None else manifest.parent
    check_encoding(encoding or "utf-8")

    @cache
    def list_names() -> list[str]:
        return sorted(_list_files(base, report_progress))

    tables = CaptionTables(list_names)
    tables_here = [name for name in find_tables(list_names()) if (base / name).is_file()]
    for name in tables_here if manifest is None else [manifest.name]:
        with _open_inside(base / name, root) as stream:
            tables.add(name, stream, encoding or "utf-8", typed_tables=typed_tables)
    rows = tables.videos()
    files: list[str] = []
    uploaded: Sequence[str] = ()
    if manifest is None:
        files, uploaded = _find_videos(path, list_names())
        if not rows:
            _require_videos(path, files, uploaded)
        else:
            files = _without_row(path, files, rows)
    notes = tables.unused
    if manifest is None:
        notes |= dict.fromkeys(SideFileNames(list_names()).unused, "belongs to no video, and is not used")
    videos, left_out = _read_folder(base, rows, files, encoding, root, report_progress, notes)
    if not videos:
        raise InvalidInput.of(list(left_out.values()))
    if captions_from_names:
        videos = list(map(add_caption_from_name, videos))
    return FolderVideos(
        base,
        videos,
        left_out,
        uploaded,
        [name for name in files if name not in left_out] if tables.tables and manifest is None else (),
        tables.missing,
        {table.path: table.format for table in tables.tables},
        notes,
    )


def _find_full_manifest(folder: Path) -> Path | None:
    """Find the file in a folder that lists all of its videos; None if there is none."""
    names = [name for name in MANIFEST_NAMES if name not in CAPTION_TABLE_NAMES]
    return next(
        (folder / name for name in (*names, *TYPED_MANIFEST_NAMES) if (folder / name).is_file()), None
    )


def find_manifest(folder: Path) -> Path | None:
    """Find the file in a folder that lists its videos and captions; None if there is none."""
    names = MANIFEST_NAMES + TYPED_MANIFEST_NAMES
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _find_videos(folder: Path, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Find a folder's video files and its uploaded files, as paths."""
    found = [name for name in names if PurePosixPath(name).suffix.lower() in VIDEO_SUFFIXES]
    top = folder.resolve().name
    uploaded = [name for name in found if _is_uploaded(top, name)]
    return [name for name in found if not _is_uploaded(top, name)] if uploaded else found, uploaded


def _require_videos(folder: Path, files: Sequence[str], uploaded: Sequence[str]) -> None:
    """Raise InvalidInput if a folder without a manifest has no video files."""
    if not files:
        raise InvalidInput.at(
            str(folder),
            "The folder has only uploaded videos, which belong to their own domains."
            if uploaded
            else "The folder has no videos.",
            NO_VIDEOS_HINT,
        )


def _without_row(folder: Path, files: Sequence[str], rows: Sequence[VideoSpec]) -> list[str]:
    """Find the files that no row names; rows may use absolute paths and composed characters."""

    @cache
    def resolve_folder(path: str) -> str:
        return os.path.realpath(path)

    def locate(name: str) -> tuple[str, str]:
        place, file = os.path.split(folder / name)
        return resolve_folder(place), unicodedata.normalize("NFC", file)

    named = {locate(row.uri) for row in rows if not is_source_uri(row.uri)}
    return [name for name in files if locate(name) not in named and not is_hidden(name)]


def _read_folder(
    folder: Path,
    rows: Sequence[VideoSpec],
    files: Sequence[str],
    encoding: str | None,
    root: Path | None,
    report_progress: Callable[[], object],
    notes: dict[str, str],
) -> tuple[list[VideoSpec], dict[str, FieldError]]:
    """Read a folder's videos with captions and subtitles; also return the errors of those left out.

    Args:
        files: Paths of the other video files.
        encoding: Encoding of sidecar files that are not UTF-8; None: detected.
        root: Folder that links must not leave.
        notes: Receives what is worth knowing about sidecar files.
    """

    @cache
    def find_side_files(place: Path) -> SideFileNames:
        try:
            return SideFileNames(os.listdir(place))
        except OSError:  # rows may name missing folders
            return SideFileNames(())

    def find(name: str) -> list[str]:
        place, name = os.path.split(name)
        found = (os.path.join(place, each) for each in find_side_files(folder / place).find(name))
        return [path for path in found if (folder / path).is_file()]

    def open_file(name: str) -> BinaryIO:
        return _open_inside(folder / name, root)

    side_files = SideFiles(find, open_file, encoding, partial(_frame_rate, folder), notes)
    videos: list[VideoSpec] = []
    left_out: dict[str, FieldError] = {}
    for name, row in chain(((row.uri, row) for row in rows), ((name, None) for name in files)):
        report_progress()
        try:
            if row is not None:
                videos.append(add_subtitles(row, name, side_files))
                continue
            _check_file(folder / name, name)
            videos.append(read_sidecars(name, side_files))
        except InvalidInput as error:
            left_out[name] = error.errors[0]
        except OSError as error:
            sidecar = Path(os.fsdecode(error.filename or name)).name
            left_out[name] = FieldError(
                sidecar, f"The file cannot be read ({error.strerror}).", "Let the service read it."
            )
    return videos, left_out


def _frame_rate(folder: Path, uri: str) -> float | None:
    """Find a video's frames per second, in a process of its own; None if it cannot be read."""
    with suppress(MediaError, OSError), VideoDecoder() as decoder:
        return decoder.decode(folder / uri, frames=1, size=1).fps
    return None


def _is_uploaded(top: str, name: str) -> bool:
    """Check whether a path in a folder named ``top`` leads through any library's upload folder."""
    folders = (top, *PurePosixPath(name).parts[:-1])
    return any(
        parent == "uploads" and UPLOAD_FOLDER.fullmatch(folder) for parent, folder in pairwise(folders)
    )


def _check_file(path: Path, name: str) -> None:
    """Raise InvalidInput for a name that cannot be stored, or a path that is not a file."""
    printable = repr(name)[1:-1]
    if not name.isascii() and name != name.encode("utf-8", "replace").decode():
        raise InvalidInput.at(printable, "The file name is not Unicode.", "Rename the file.")
    if any(unicodedata.category(c) == "Cc" for c in name):
        raise InvalidInput.at(printable, "The file name contains a control character.", "Rename the file.")
    if not path.is_file():
        kind = "a link to a missing file" if path.is_symlink() else "not a regular file"
        raise InvalidInput.at(name, f"It is {kind}.", "Remove it, or replace it with the video.")


def _list_files(folder: Path, report_progress: Callable[[], object]) -> Iterator[str]:
    """List all files as paths relative to a folder, without following links to folders.

    ``Path.rglob`` silently omits unreadable folders, whose videos would look deleted.
    """
    for place, _, names in os.walk(folder, onerror=_raise):
        report_progress()
        inside = Path(place).relative_to(folder)
        yield from ((inside / name).as_posix() for name in names)


def _raise(error: OSError) -> NoReturn:
    raise error


def _open_inside(path: Path, root: Path | None) -> BinaryIO:
    """Open a manifest or a sidecar file; raise InvalidInput if a link leads out of ``root``."""
    target = path.resolve()
    if root is not None and not target.is_relative_to(root):
        raise InvalidInput.at(
            path.name, "The file is a link that leads outside the media root.", "Copy the file there."
        )
    return target.open("rb")
