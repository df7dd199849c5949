"""Preview a task: its videos with captions, the files left out, and why it would be refused.

Creating a task runs the same checks, so no upload fails for a reason that was known beforehand.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import BinaryIO

from pydantic import ValidationError

from cinestrata_schemas.tasks import TaskSpec, VideoSpec
from cinestrata_schemas.uploads import (
    CaptionTable,
    LocalFile,
    OmittedPath,
    PreviewProblem,
    PreviewRequest,
    UploadPreview,
)
from service.core import request_limits
from service.core.errors import CinestrataError, FieldError, InvalidInput
from service.storage.library_backbone import default_method
from service.tasks import commands
from service.tasks.ingestion_checks import content_errors, duplicate_ids, task_errors
from service.tasks.manifests.caption_tables import TABLE_SUFFIXES, CaptionTables, find_tables
from service.tasks.manifests.manifest_parser import CAPTION_TABLE_NAMES, MANIFEST_NAMES
from service.tasks.manifests.side_files import (
    SideFileNames,
    SideFiles,
    add_caption_from_name,
    add_subtitles,
    read_sidecars,
)
from service.tasks.manifests.text_files import UTF16_MARKS
from service.tasks.manifests.video_files import find_omission, is_video_name, normalize_path
from service.tasks.manifests.video_tables import TYPED_SUFFIXES
from service.tasks.uploads import upload_store

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")


class SelectedFiles:
    """The selected files, and the videos among them, which are empty until they are read.

    Attributes:
        files: Files that can be uploaded, by normalized path.
        skipped: Files that cannot be uploaded.
        videos: The videos; URIs are normalized paths.
    """

    def __init__(self, request: PreviewRequest) -> None:
        self._request = request
        self._rows: dict[str, VideoSpec] = {}
        self._texts = {normalize_path(text.path): text.content for text in request.texts}
        self.files: dict[str, LocalFile] = {}
        self.skipped: list[OmittedPath] = []
        self.tables: list[CaptionTable] = []
        self.missing: list[OmittedPath] = []
        self.videos: list[VideoSpec] = []
        for file in request.files:
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

    def read_table(self) -> None:
        """Read the caption tables and find the files that their rows name; raise InvalidInput."""
        tables = CaptionTables(lambda: list(self.files), is_searched=True)
        encodings: dict[str, str] = {}
        for path in self._choose_tables(self._request.table):
            with self._open_text(path) as stream:
                if stream.read(2) in UTF16_MARKS:
                    encodings[path] = "utf-16"
                stream.seek(0)
                tables.add(path, stream, self._request.encoding)
        self.tables = [
            CaptionTable(
                path=table.path,
                format=table.format,
                delimiter=table.delimiter,
                encoding=encodings.get(table.path, self._request.encoding),
                videos=table.videos,
            )
            for table in tables.tables
        ]
        self.missing = [OmittedPath(path=path, reason=reason) for path, reason in tables.missing.items()]
        self._rows = {row.uri: row for row in tables.videos()}

    def read_videos(self) -> None:
        """Read the sidecar files; for videos named by a table, only subtitles. Raise InvalidInput."""
        request = self._request
        encoding = None if request.encoding.lower() in ("utf-8", "utf8") else request.encoding
        files = SideFiles(self._find, self._open_text, encoding)
        videos = []
        for path in self._video_paths():
            row = self._rows.get(path)
            video = read_sidecars(path, files) if row is None else add_subtitles(row, path, files)
            videos.append(add_caption_from_name(video) if request.captions_from_names else video)
        self.videos = videos

    def _choose_tables(self, path: str | None) -> list[str]:
        """Choose the caption tables; without the client's choice, a manifest lists all videos. Raise InvalidInput."""
        if path is not None:
            if normalize_path(path) not in self._texts:
                raise InvalidInput.at(
                    "table", f"{path!r} is not one of the text files.", "Select the table again."
                )
            if not path.lower().endswith(TABLE_SUFFIXES):
                message = f"{path!r} ends in none of {', '.join(TABLE_SUFFIXES)}."
                hint = "Save the caption table as CSV or JSON, and select it again."
                raise InvalidInput.at("table", message, hint)
            return [normalize_path(path)]
        tables = [
            each for each in find_tables({**self._texts, **self.files}, TABLE_SUFFIXES) if each in self._texts
        ]
        names = set(MANIFEST_NAMES) - set(CAPTION_TABLE_NAMES)
        found = [each for each in tables if PurePosixPath(each).name in names]
        if len(found) > 1:
            message = f"Several files can be the manifest: {', '.join(sorted(found)[:5])}."
            raise InvalidInput.at("table", message, "Select one of them as the caption table.")
        return found or sorted(tables)

    def _find(self, name: str) -> list[str]:
        """Find the sidecar files that are read under a name, best first."""
        return [path for path in self._names.find(name) if path in self._texts]

    def _open_text(self, path: str) -> BinaryIO:
        """Open a sidecar file or the table."""
        return io.BytesIO(self._texts[path])

    def _video_paths(self) -> list[str]:
        """List the paths of the videos in order, and mark all other files as skipped."""
        videos = []
        for path, file in self.files.items():
            if (
                not is_video_name(path) and path not in self._rows
            ):  # which tables may name whatever its extension
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


_MAX_PROBLEMS = 20
_OTHER_ENCODING = "cp1252"  # for text files that are not UTF-8: Windows


def preview_upload(request: PreviewRequest) -> UploadPreview:
    """Preview the task that selected files would become. Stores nothing."""
    selection = SelectedFiles(request)
    problems: list[FieldError] = []
    for step in (selection.read_table, selection.read_videos):
        try:
            step()
        except InvalidInput as error:
            problems += error.errors
    suggested = _other_encoding(request) if problems else None
    if suggested:
        hint = f"Save it as UTF-8, or read it as Windows text ({suggested})."
        problems = [
            FieldError(each.field, each.message, hint if "not UTF-8" in each.message else each.hint)
            for each in problems
        ]
    videos = selection.videos
    domain, found = _check_destination(request, videos)
    problems += found
    problems += islice(_video_problems(videos), _MAX_PROBLEMS)
    sizes = [selection.files[video.uri] for video in videos]
    problems += _limit_problems(sizes)
    if not videos and not problems:
        problems.append(FieldError("files", "There is no video in the selection.", "Select video files."))
    return UploadPreview(
        domain=domain,
        is_append=request.into is not None,
        videos=[video.model_copy(update={"uri": selection.files[video.uri].path}) for video in videos],
        bytes=sum(file.size for file in sizes),
        captions=sum(len(video.captions) for video in videos),
        transcripts=sum(bool(video.transcript) for video in videos),
        without_captions=[selection.files[video.uri].path for video in videos if not video.captions],
        missing=selection.missing,
        skipped=selection.skipped,
        tables=selection.tables,
        suggested_encoding=suggested,
        problems=[
            PreviewProblem(field=each.field, message=each.message, hint=each.hint)
            for each in problems[:_MAX_PROBLEMS]
        ],
    )


def _other_encoding(request: PreviewRequest) -> str | None:
    """Suggest an encoding for text files that are not UTF-8; None if they are, or if it would not help."""
    if request.encoding.lower() not in ("utf-8", "utf8"):
        return None
    for text in request.texts:
        try:
            text.content.decode()
        except UnicodeDecodeError:
            try:
                text.content.decode(_OTHER_ENCODING)
            except UnicodeDecodeError:
                return None
            return None if text.content.startswith(UTF16_MARKS) else _OTHER_ENCODING
    return None


def _check_destination(
    request: PreviewRequest, videos: Sequence[VideoSpec]
) -> tuple[str | None, list[FieldError]]:
    """Check the domain; return its name, and the task's errors other than those in videos."""
    errors: list[FieldError] = []
    domain = request.name if request.into is None else None
    if request.into is None:
        fields = {"method": request.method, "settings": request.settings}
        name = "unnamed" if request.name is None else request.name
        try:
            spec = TaskSpec.model_validate({**fields, "name": name, "videos": [{"uri": "any"}]})
            errors += task_errors(spec.method or default_method(), spec.settings or {})
        except ValidationError as error:
            errors += InvalidInput.from_pydantic(error.errors()).errors
    if errors:
        return domain, errors
    try:
        domain = commands.check_destination(request.name, request.into, videos)
    except CinestrataError as error:
        field, message = re.fullmatch(r"(?:([\w.\[\]]+): )?(.*)", error.detail, re.S).groups()  # type: ignore[union-attr]
        errors.append(FieldError(field or ("into" if request.into else "name"), message))
    return domain, errors


def _video_problems(videos: Sequence[VideoSpec]) -> Iterator[FieldError]:
    yield from duplicate_ids(videos)
    for video in videos:
        yield from content_errors(video.uri, video)


def _limit_problems(files: Sequence[LocalFile]) -> Iterator[FieldError]:
    if len(files) > request_limits.MAX_VIDEOS_PER_TASK:
        yield FieldError(
            "files",
            f"{len(files)} videos are more than a task may have.",
            f"Select at most {request_limits.MAX_VIDEOS_PER_TASK}, and append the others later.",
        )
    needed = sum(file.size for file in files if file.upload is None)
    available = max(0, upload_store.available_bytes())
    if needed > available:
        yield FieldError(
            "files",
            f"The files have {needed / 1024**3:.1f} GiB; the server has room for {available / 1024**3:.1f} GiB.",
            "Select fewer files, and append the others later.",
        )
