"""List the videos in a folder, here or in an object store, from its manifest, or from its tables and side files."""

from __future__ import annotations

import io
import os
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from urllib.parse import quote

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.uris import is_source_uri
from media import MediaError
from media.errors import SourceOutage
from media.sources.media_source import ListedFile, SourceUri
from media.video_limits import VIDEO_SUFFIXES
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput, SourceUnavailable
from service.storage.library_files import UPLOAD_FOLDER, SourceReader
from service.tasks.manifests import caption_tables
from service.tasks.manifests.side_files import (
    NO_VIDEOS_HINT,
    REPEATED,
    SIDECAR_SUFFIXES,
    SUBTITLE_SUFFIXES,
    UNREADABLE,
    SideFileNames,
    SideFiles,
    add_caption_from_name,
    add_subtitles,
    explain_error,
    find_omission,
    find_videos,
    is_video_name,
    read_sidecars,
)
from service.tasks.manifests.text_files import check_encoding
from service.tasks.manifests.video_tables import TYPED_SUFFIXES

# Other broken links may have led to folders.
_FILES = (*VIDEO_SUFFIXES, *caption_tables.TABLE_SUFFIXES, *SIDECAR_SUFFIXES, *SUBTITLE_SUFFIXES)


@dataclass(frozen=True)
class VideoListing:
    """The videos in a folder or manifest."""

    base: Any  # folder that the URIs are relative to
    videos: Sequence[VideoSpec]  # their files may be missing
    # Why files cannot be used, by path: videos that are not listed, tables, and sidecar files of listed videos. A path
    # that ends with a slash is a folder that is not listed.
    left_out: Mapping[str, FieldError]
    # why paths are not part of the folder, such as hidden files
    omitted: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    # paths of videos that the folder's caption tables do not mention
    without_row: Sequence[str] = field(default=(), kw_only=True)
    # why table rows were left out: they match no file, or several
    missing: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    # where the first row of each video is that a table or manifest names, by its URI
    locations: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    # format of each caption table or manifest by its path
    formats: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    # what else is worth knowing about files: detected encodings, and files that are not used
    notes: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def require_all(self) -> None:
        """Raise InvalidInput if any file was left out."""
        if self.left_out:
            raise InvalidInput.of(list(self.left_out.values()))


def _read_videos(
    rows: Iterable[tuple[str, VideoSpec]],
    names: Sequence[str],
    no_videos: FieldError,
    *,
    tables: caption_tables.CaptionTables,
    side_files: SideFiles,
    check_file: Callable[[str], object],
    captions_from_names: bool,
    report_progress: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Read the fields of a :class:`VideoListing`: the videos of tables, by path, and the others, ``names``.

    Leaves out videos for which ``check_file`` raises an error, and raises ``no_videos`` if none is left.
    """
    left_out = side_files.left_out
    videos: list[VideoSpec] = []
    for name, row in chain(rows, ((name, None) for name in names)):
        report_progress()
        try:
            if row is None:
                check_file(name)
            video = read_sidecars(name, side_files) if row is None else add_subtitles(row, name, side_files)
            videos.append(add_caption_from_name(video) if captions_from_names else video)
        except UNREADABLE as error:
            left_out[name] = explain_error(name, error)
    if not videos:
        raise InvalidInput.of([*left_out.values(), no_videos])
    return {
        "videos": videos,
        "left_out": left_out,
        "without_row": [name for name in names if name not in left_out] if tables.tables else (),
        "missing": tables.missing,
        "locations": tables.locations,
        "formats": {table.path: table.format for table in tables.tables},
        "notes": side_files.notes,
    }


@dataclass(frozen=True)
class FolderVideos(VideoListing):
    """The videos in a local folder."""

    base: Path
    # paths of a library's uploaded files in the folder; not listed, because they belong to their own domains
    uploaded: Sequence[str] = ()


def list_folder_videos(
    path: Path,
    encoding: str | None = None,
    captions_from_names: bool = False,
    root: Path | None = None,
    report_progress: Callable[[], object] = lambda: None,
) -> FolderVideos:
    """List the videos in a manifest or a folder; raise OSError, or InvalidInput if there are none.

    Without a manifest, captions come from caption tables and sidecar files. Tables found in the folder need not name
    all videos: the others get captions from sidecar files. A manifest, or a table given as ``path``, lists all videos,
    also hidden ones. A listed video without a transcript gets one from its subtitles.

    Either all subfolders are listed or none. A video file is left out if its name is not Unicode, or if it is a broken
    link. A table or sidecar file that is invalid, unreadable or outside ``root`` is left out, but not its videos. A
    library's uploaded files are listed only if a manifest names them, or if ``path`` is the folder of an upload.

    The encoding is that of the manifest (by default UTF-8), and of sidecar files that are not UTF-8 (by default
    detected). Links must not leave ``root``, whose own path has none.
    """
    check_encoding(encoding or "utf-8")
    manifest = path if path.is_file() else find_manifest(path, caption_tables.FULL_MANIFEST_NAMES)
    base = path if manifest is None else manifest.parent
    walk = cache(partial(_walk, base, root, report_progress))
    content = walk() if manifest is None else _FolderFiles()
    side_files = SideFiles(
        partial(_find_side_files, base, cache(_name_side_files)),
        lambda name: _open_inside(base / name, root),
        encoding,
        is_strict=False,
        left_out=content.left_out,
    )
    tables = caption_tables.read_tables(manifest.name if manifest else None, lambda: walk().names, side_files)
    rows = tables.videos()
    others = ["uploaded videos, which belong to their own domains"] if content.uploaded else []
    others += [f"{reason} files" for reason in dict.fromkeys(content.omitted.values())]
    has_only = f"only {' and '.join(others)}" if others else "no videos"
    read = _read_videos(
        ((row.uri, row) for row in rows),
        _without_row(path, content.videos, rows),
        FieldError(str(path), f"The folder has {has_only}.", NO_VIDEOS_HINT),
        tables=tables,
        side_files=side_files,
        check_file=lambda name: _check_file(base / name, name),
        captions_from_names=captions_from_names,
        report_progress=report_progress,
    )
    return FolderVideos(base, uploaded=content.uploaded, omitted=content.omitted, **read)


def find_manifest(
    folder: Path, names: Sequence[str] = caption_tables.MANIFEST_NAMES + caption_tables.TYPED_MANIFEST_NAMES
) -> Path | None:
    """Find the file in a folder that lists its videos and captions; None if there is none."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _without_row(folder: Path, files: Sequence[str], rows: Sequence[VideoSpec]) -> list[str]:
    """Find the files that no row names; rows may use absolute paths and composed characters."""

    @cache
    def resolve_folder(path: str) -> str:
        return os.path.realpath(path)

    def locate(name: str) -> tuple[str, str]:
        parent, file = os.path.split(folder / name)
        return resolve_folder(parent), unicodedata.normalize("NFC", file)

    named = {locate(row.uri) for row in rows if not is_source_uri(row.uri)}
    return [name for name in files if locate(name) not in named]


def _name_side_files(folder: Path) -> SideFileNames:
    with suppress(OSError):  # rows may name missing folders
        return SideFileNames(os.listdir(folder))
    return SideFileNames(())


def _find_side_files(folder: Path, list_names: Callable[[Path], SideFileNames], name: str) -> list[str]:
    parent, name = os.path.split(name)
    paths = (os.path.join(parent, file) for file in list_names(folder / parent).find(name))
    return [path for path in paths if (folder / path).is_file()]


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


@dataclass
class _FolderFiles:
    """What a folder contains, as paths relative to it; attributes as in :class:`FolderVideos`."""

    names: list[str] = field(default_factory=list)
    videos: list[str] = field(default_factory=list)
    uploaded: list[str] = field(default_factory=list)
    omitted: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, FieldError] = field(default_factory=dict)


def _walk(folder: Path, root: Path | None, report_progress: Callable[[], object]) -> _FolderFiles:
    """List all files below a folder and what it links to, each once. Unreadable folders are left out by name."""
    content = _FolderFiles()
    base = folder.resolve()
    seen: set[Path] = set()
    folders, linked = deque([""]), deque[str]()
    while folders or linked:
        report_progress()
        path = (folders or linked).popleft()
        real = (folder / path).resolve()
        if root is not None and not real.is_relative_to(root):
            message = "It is a link that leads outside the media root."
            content.left_out[f"{path}/"] = FieldError(f"{path}/", message)
            continue
        above = (folder / path).parent.resolve()
        if real in seen or (path and (base.is_relative_to(real) or above.is_relative_to(real))):
            content.omitted[f"{path}/"] = REPEATED
            continue
        seen.add(real)
        parts = real.relative_to(base.parent).parts if real.is_relative_to(base) else real.parts
        is_uploaded = any(
            top == "uploads" and UPLOAD_FOLDER.fullmatch(inner) for top, inner in pairwise(parts)
        )
        try:
            _, inner_folders, files = next(os.walk(folder / path, onerror=_raise))
        except OSError as error:
            if not path:
                raise
            message = f"The folder cannot be read ({error.strerror})."
            content.left_out[f"{path}/"] = FieldError(f"{path}/", message, "Let this user read it.")
            continue
        for inner in sorted(inner_folders):
            name, target = os.path.join(path, inner), folder / path / inner
            if (omission := find_omission(f"{name}/")) is None:
                (linked if target.is_symlink() else folders).append(name)
            elif any(is_video_name(file) for _, _, inside in os.walk(target) for file in inside):
                content.omitted.setdefault(*omission)
        for name in (os.path.join(path, file) for file in files):
            content.names.append(name)
            if is_uploaded and is_video_name(name):
                content.uploaded.append(name)
            elif name.lower().endswith(_FILES) or find_omission(name):
                continue
            elif (file := folder / name).is_symlink() and not file.exists():
                message = "It is a link to a missing folder."
                content.left_out[f"{name}/"] = FieldError(f"{name}/", message, "Restore or remove it.")
    content.names.sort()
    content.videos, omitted = find_videos(sorted({*content.names} - {*content.uploaded}))
    content.omitted |= omitted
    return content


def _raise(error: OSError) -> NoReturn:
    raise error


def _open_inside(path: Path, root: Path | None) -> BinaryIO:
    """Open a manifest or a sidecar file; raise InvalidInput if a link leads out of ``root``."""
    target = path.resolve()
    if root is not None and not target.is_relative_to(root):
        message = "The file is a link that leads outside the media root."
        raise InvalidInput.at(path.name, message, "Copy the file there.")
    if not target.is_file():
        raise InvalidInput.at(path.name, "It is not a regular file, or a broken link.", "Remove it.")
    return target.open("rb")


@dataclass(frozen=True)
class RemoteVideos(VideoListing):
    """The videos in a remote folder or manifest."""

    base: SourceUri  # URI of the folder that video URIs are relative to, ending with a slash
    # the folder's files by path; None for a web server, which cannot be listed
    files: Mapping[str, ListedFile] | None = None

    def place(self, videos: Sequence[VideoSpec]) -> list[VideoSpec]:
        """Complete the videos' URIs."""
        return [
            video
            if is_source_uri(video.uri)
            else video.model_copy(update={"uri": self.base.text + _encode(self.base, video.uri)})
            for video in videos
        ]


def list_remote_videos(
    source: str,
    reader: SourceReader,
    encoding: str | None = None,
    captions_from_names: bool = False,
    report_progress: Callable[[], object] = lambda: None,
) -> RemoteVideos:
    """List the videos in an object store folder, or in a manifest in an object store or on a web server.

    The files mean the same as in :func:`~service.tasks.manifests.folder_videos.list_folder_videos`. A video is left out
    if its name cannot be part of a URI, or if a table names a file that is missing or outside its folder.

    Calls ``report_progress`` for each page of a listing and each part of a file. Raises SourceUnavailable, or
    InvalidInput as for a folder, and for a source that is not allowed.
    """
    try:
        check_encoding(encoding or "utf-8")
        named = SourceUri.parse(source)
        is_table = named.segments[-1].lower().endswith((*caption_tables.TABLE_SUFFIXES, *TYPED_SUFFIXES))
        manifest = named.segments[-1] if is_table else None
        folder = source.partition("?")[0] if named.port is not None else source
        base = SourceUri.parse(folder[: folder.rindex("/") + 1] if manifest else folder.rstrip("/") + "/")
        files: dict[str, ListedFile] | None = None
        if manifest is None or named.port is None:
            files = {file.name: file for file in reader.list_files(base, report_progress)}
            manifest = manifest or next(
                (name for name in caption_tables.FULL_MANIFEST_NAMES if name in files), None
            )

        def open_file(name: str) -> BinaryIO:
            caption_tables.require_text_table(name, name)  # before the download
            uri = named if named.segments[-1] == name else SourceUri.parse(base.text + _encode(base, name))
            return io.BytesIO(reader.read(uri, request_limits.MAX_TABLE_BYTES, report_progress))

        side_files = SideFiles(SideFileNames(files or ()).find, open_file, encoding, is_strict=False)
        tables = caption_tables.read_tables(manifest, lambda: list(files or ()), side_files)
        rows = tables.videos()
        paths = [row.uri.removeprefix(base.text) for row in rows]
        names, omitted = find_videos(sorted({*(files or ())} - {*paths}) if manifest is None else ())
        side_files.left_out.update(unlisted := _find_unlisted(base, tables, files))
        read = _read_videos(
            ((path, row) for path, row in zip(paths, rows, strict=True) if row.uri not in unlisted),
            names,
            FieldError("source", f"There are no videos in {base.shown}.", NO_VIDEOS_HINT),
            tables=tables,
            side_files=side_files,
            check_file=lambda name: SourceUri.parse(base.text + name),
            captions_from_names=captions_from_names,
        )
        return RemoteVideos(base, files=files, omitted=omitted, **read)
    except SourceOutage as error:
        raise SourceUnavailable(error.reason) from error
    except MediaError as error:
        raise InvalidInput.at("source", f"{error.reason}.") from error


def _find_unlisted(
    base: SourceUri, tables: caption_tables.CaptionTables, files: Mapping[str, ListedFile] | None
) -> dict[str, FieldError]:
    """Explain which files of a manifest are missing or outside its folder."""
    unlisted: dict[str, FieldError] = {}
    for uri, row in tables.locations.items():
        if is_source_uri(uri):
            continue
        if uri.startswith("/") or "://" in uri or ".." in uri.split("/"):
            message = "The file is outside the manifest's folder."
            hint = "Write paths relative to the manifest's folder, or complete URIs."
            unlisted[uri] = FieldError(uri, message, hint)
        elif files is not None and uri not in files:
            hint = f"Add it, or correct the row that names it: {row}. Paths are relative to its table."
            unlisted[uri] = FieldError(uri, "The file does not exist.", hint)
        else:
            try:
                SourceUri.parse(base.text + _encode(base, uri))
            except MediaError as error:
                unlisted[uri] = FieldError(uri, f"{error.reason}.")
    return unlisted


def _encode(base: SourceUri, path: str) -> str:
    return path if base.port is None else quote(path)
