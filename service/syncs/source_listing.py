"""List the files of a source: a folder or manifest, with each file's size, time and content or version."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.uris import is_source_uri
from media import MediaError, content_hash
from media.sources.media_source import ListedFile, SourceUri
from service.core.errors import FieldError, InvalidInput
from service.core.settings import settings
from service.storage.library_files import SourceReader, find_allowed_prefix
from service.syncs.sync_plan import SourceFile, SourceFiles, folder_device, shown_path
from service.tasks.ingestion_checks import content_errors, uri_errors
from service.tasks.manifests import folder_videos
from service.tasks.manifests.caption_tables import require_text_table

_MAX_LISTED = 20


def check_source(source: str) -> None:
    """Check that a source is an allowed folder or manifest, before its sync is stored; raise InvalidInput."""
    if not is_source_uri(source):
        path = _resolve(source)
        if path.is_file():
            require_text_table(path.name, "source")
        return
    require_text_table(source.rpartition("/")[2], "source")
    try:
        folder = SourceUri.parse(source.rstrip("/") + "/")
        if folder.port is not None:
            raise MediaError(f"{folder.shown!r} is on a web server, which can't be listed")
        find_allowed_prefix(folder)
    except MediaError as error:
        raise InvalidInput.at(
            "source", f"{error.reason}.", "Choose a folder in an allowed source."
        ) from error


def list_source(
    source: str, captions_from_names: bool, report_progress: Callable[[], object] = lambda: None
) -> SourceFiles:
    """List the files of a folder or manifest below the media root or in an allowed source.

    Calls ``report_progress`` for each folder, page of a listing, part of a manifest, and file. Raises OSError,
    SourceUnavailable, or InvalidInput for a source that is not allowed, has no usable videos or gives them IDs.
    """
    if is_source_uri(source):
        remote = folder_videos.list_remote_videos(
            source, SourceReader(), captions_from_names=captions_from_names, report_progress=report_progress
        )
        return remote_files(remote)
    local = folder_videos.list_folder_videos(
        _resolve(source),
        captions_from_names=captions_from_names,
        root=settings().media_root.resolve(),
        report_progress=report_progress,
    )
    files = local_files(local, report_progress)
    return replace(files, place=partial(_place_below_media_root, local.base))


def _resolve(source: str) -> Path:
    """Find the folder or manifest of a source below the media root; raise InvalidInput."""
    hint = "Choose a folder below the media root, or its manifest."
    if "://" in source:
        raise InvalidInput.at(
            "source", "The source is neither a local folder nor an s3:// or gs:// folder.", hint
        )
    root = settings().media_root.resolve()
    try:
        path = (root / source).resolve()  # the source may be an absolute path
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):
        raise InvalidInput.at("source", "The path cannot be read.", hint) from None
    if not path.is_relative_to(root):
        raise InvalidInput.at("source", "The folder is outside the media root.", hint)
    if not exists:
        raise InvalidInput.at("source", f"{source!r} does not exist below the media root.", hint)
    return path


def _place_below_media_root(base: Path, videos: Sequence[VideoSpec]) -> list[VideoSpec]:
    """Complete videos' paths to those below the media root; a file outside keeps its path, and is refused."""
    root = settings().media_root.resolve()
    paths = ((video, (base / video.uri).resolve()) for video in videos)
    return [
        video.model_copy(update={"uri": str(path.relative_to(root) if path.is_relative_to(root) else path)})
        for video, path in paths
    ]


def remote_files(listing: folder_videos.RemoteVideos) -> SourceFiles:
    """List the video files in a remote folder. Syncs compare their versions, not their contents; raise InvalidInput."""
    base, files = listing.base, listing.files
    if files is None:
        message = f"{base.shown} is on a web server, which can't be listed."
        raise InvalidInput.at("source", message, "Use `cinestrata ingest` with the manifest.")

    def find_file(video: VideoSpec) -> SourceFile | str:
        file = files.get(video.uri)
        if file is None:
            return f"It is outside the folder {base.shown}; a sync follows the files of one folder."
        etag = file.version.partition(":")[0].strip('"')
        # The etag of S3 is the MD5 of a small object.
        content = etag if re.fullmatch(r"[0-9a-f]{32}", etag) else file.version
        return SourceFile(video, file.size, _digest(file, file.version), token=_digest(file, content))

    def path_of(uri: str) -> str | None:
        return uri.removeprefix(base.text) if uri.startswith(base.text) else None

    return _list_files(listing, find_file, source=base.text, path_of=path_of, place=listing.place)


def local_files(
    listing: folder_videos.FolderVideos, report_progress: Callable[[], object] = lambda: None
) -> SourceFiles:
    """List the video files in a local folder; raise InvalidInput."""
    base = listing.base.resolve()

    def find_file(video: VideoSpec) -> SourceFile | str:
        report_progress()
        if is_source_uri(video.uri):
            return "It is outside the folder; a sync follows the files of one folder."
        path = listing.base / video.uri
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            if is_missing and (row := listing.locations.get(video.uri)):
                return f"The file does not exist. Add it, or correct the row that names it: {row}."
            return f"The file {'does not exist' if is_missing else 'cannot be read'}."
        if not stat.S_ISREG(status.st_mode):
            return "It is not a regular file."
        return SourceFile(
            video,
            status.st_size,
            f"{status.st_dev}:{status.st_ino}",
            status.st_mtime_ns,
            status.st_ctime_ns,
            partial(content_hash, path),
        )

    return _list_files(
        listing,
        find_file,
        source=str(base),
        uploaded=listing.uploaded,
        device_of=lambda path: folder_device(base / path),
        path_of=partial(_path_in_folder, base),
        signature_of=partial(_signature, base),
    )


def _list_files(
    listing: folder_videos.VideoListing, find_file: Callable[[VideoSpec], SourceFile | str], **source: Any
) -> SourceFiles:
    """List the files of videos for which ``find_file`` returns one, not a reason why it cannot be used.

    Raises InvalidInput if a video has an ID, or all are left out. ``source`` are the other fields of the result.
    """
    if named := next((video.id for video in listing.videos if video.id is not None), None):
        message = f"The manifest gives the ID {named!r}, but a sync gives IDs itself."
        raise InvalidInput.at("id", message, "Omit the IDs.")
    left_out = explain_left_out(listing.left_out)
    usable = SourceFiles(files=[], left_out=left_out, **source)
    for video in listing.videos:
        file = find_file(video)
        if isinstance(file, str):
            left_out[video.uri] = file
        elif error := next(content_errors(video.uri, video), None):
            left_out[video.uri] = _reason(video.uri, error)
        else:
            usable.files.append(file)
    if not usable.files:
        reasons = [f"{shown_path(path)}: {reason}" for path, reason in left_out.items()]
        more = f" ({len(reasons) - _MAX_LISTED} more)" if len(reasons) > _MAX_LISTED else ""
        message = f"No file in the source can be used. {' '.join(reasons[:_MAX_LISTED])}{more}"
        raise InvalidInput.at("source", message)
    return usable


def _digest(file: ListedFile, version: str) -> str:
    return hashlib.sha256(f"{file.size}:{version}".encode()).hexdigest()


def _path_in_folder(base: Path, uri: str) -> str | None:
    path = settings().media_root.resolve() / uri
    return None if "://" in uri or not path.is_relative_to(base) else path.relative_to(base).as_posix()


def _signature(base: Path, path: str) -> tuple[int, int] | None:
    """Find the size and time of a file that was left out; None if it does not exist."""
    try:
        status = (base / path).stat() if (base / path).exists() else (base / path).lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return (-1, -1)
    return status.st_size, status.st_mtime_ns


def find_problem(source: SourceFiles, video: VideoSpec) -> str | None:
    """Explain why a source's video cannot be sent; None if it can."""
    (placed,) = source.place([video])
    if os.path.isabs(placed.uri):
        return "It is a link or a path that leads outside the media root."
    error = next(uri_errors(video.uri, placed.uri), None)
    return _reason(video.uri, error) if error else None


def explain_left_out(errors: Mapping[str, FieldError]) -> dict[str, str]:
    """Explain why files are left out, by path."""
    return {path: _reason(path, error) for path, error in errors.items()}


def _reason(path: str, error: FieldError) -> str:
    is_path = error.field in (path, repr(path)[1:-1])
    field = "" if is_path else re.sub(r"^:(\d+)$", r"line \1", error.field.removeprefix(path).lstrip("."))
    return f"{field + ': ' if field else ''}{error.message} {error.hint}".strip()
