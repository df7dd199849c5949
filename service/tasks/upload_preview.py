"""Preview a task: its videos with captions, the files left out, and why it would be refused.

Creating a task runs the same checks, so no upload fails for a reason that was known beforehand.
"""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import PurePosixPath

from pydantic import ValidationError

from cinestrata_schemas import tasks
from cinestrata_schemas.problems import ProblemField
from service.core import request_limits
from service.core.errors import CinestrataError, FieldError, InvalidInput
from service.tasks import commands, upload_store
from service.tasks.ingestion_checks import content_errors, duplicate_ids, task_errors, task_fields
from service.tasks.manifests import side_files
from service.tasks.manifests.caption_tables import (
    FULL_MANIFEST_NAMES,
    TABLE_SUFFIXES,
    CaptionTables,
    find_tables,
)
from service.tasks.manifests.text_files import UTF16_MARKS
from service.tasks.manifests.video_tables import TYPED_SUFFIXES

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar")
_MAX_PROBLEMS = 20
_UTF8 = ("utf-8", "utf8")
_OTHER_ENCODING = "cp1252"  # for text files that are not UTF-8: Windows


def preview_upload(request: tasks.PreviewRequest) -> tasks.UploadPreview:
    """Preview the task that selected files would become. Stores nothing."""
    files, skipped = _usable_files(request)
    texts = {side_files.normalize_path(text.path): text.content for text in request.texts}
    problems: list[FieldError] = []
    tables = CaptionTables(lambda: list(files), is_searched=True)
    try:
        for path in _choose_tables(request.table, files, texts):
            chosen = request.table is not None
            tables.add(path, io.BytesIO(texts[path]), request.encoding, is_chosen=chosen)
    except InvalidInput as error:
        problems += error.errors
        tables = CaptionTables(list)
    rows = {row.uri: row for row in tables.videos()}
    side_names = side_files.SideFileNames({**files, **texts})
    paths, others = _find_videos(files, rows, {*texts, *side_names.side_files})
    skipped += others
    videos: list[tasks.VideoSpec] = []
    sidecars = side_files.SideFiles(
        lambda name: [path for path in side_names.find(name) if path in texts],
        lambda path: io.BytesIO(texts[path]),
        None if request.encoding.lower() in _UTF8 else request.encoding,
    )
    try:
        for path in paths:
            row = rows.get(path)
            video = (
                side_files.read_sidecars(path, sidecars)
                if row is None
                else side_files.add_subtitles(row, path, sidecars)
            )
            videos.append(side_files.add_caption_from_name(video) if request.captions_from_names else video)
    except InvalidInput as error:
        problems += error.errors
        videos = []
    suggested = _other_encoding(request) if problems else None
    if suggested:
        hint = f"Save it as UTF-8, or read it as Windows text ({suggested})."
        problems = [replace(each, hint=hint) if "not UTF-8" in each.message else each for each in problems]
    domain, refusals = _check_destination(request, videos)
    problems += refusals
    contents = chain.from_iterable(content_errors(video.uri, video) for video in videos)
    problems += islice(chain(duplicate_ids(videos), contents), _MAX_PROBLEMS)
    sizes = [files[video.uri] for video in videos]
    problems += _limit_problems(sizes)
    if not videos and not problems:
        problems.append(FieldError("files", "There is no video in the selection.", "Select video files."))
    return tasks.UploadPreview(
        domain=domain,
        is_append=request.into is not None,
        videos=[video.model_copy(update={"uri": files[video.uri].path}) for video in videos],
        bytes=sum(file.size for file in sizes),
        captions=sum(len(video.captions) for video in videos),
        transcripts=sum(bool(video.transcript) for video in videos),
        without_captions=[files[video.uri].path for video in videos if not video.captions],
        missing=[tasks.OmittedPath(path=path, reason=reason) for path, reason in tables.missing.items()],
        skipped=skipped,
        tables=[
            tasks.CaptionTable(
                path=table.path,
                format=table.format,
                delimiter=table.delimiter,
                encoding="utf-16" if texts[table.path].startswith(UTF16_MARKS) else request.encoding,
                videos=table.videos,
            )
            for table in tables.tables
        ],
        suggested_encoding=suggested,
        problems=[
            ProblemField(field=each.field, message=each.message, hint=each.hint)
            for each in problems[:_MAX_PROBLEMS]
        ],
    )


def _usable_files(
    request: tasks.PreviewRequest,
) -> tuple[dict[str, tasks.LocalFile], list[tasks.OmittedPath]]:
    """Separate the files that can be uploaded, by normalized path, from the others."""
    files: dict[str, tasks.LocalFile] = {}
    skipped: list[tasks.OmittedPath] = []
    for file in request.files:
        path = side_files.normalize_path(file.path)
        if not path:
            skipped.append(tasks.OmittedPath(path=file.path, reason="no file name"))
        elif path in files:
            skipped.append(tasks.OmittedPath(path=file.path, reason="selected twice"))
        elif omission := side_files.find_omission(path):
            skipped.append(tasks.OmittedPath(path=file.path, reason=f"{omission[1]} file"))
        else:
            files[path] = file
    return files, skipped


def _choose_tables(
    chosen: str | None, files: Mapping[str, tasks.LocalFile], texts: Mapping[str, bytes]
) -> list[str]:
    """Choose the caption tables; without the client's choice, a manifest lists all videos. Raise InvalidInput."""
    if chosen is not None:
        if side_files.normalize_path(chosen) not in texts:
            message = f"{chosen!r} is not one of the text files."
            raise InvalidInput.at("table", message, "Select the table again.")
        if not chosen.lower().endswith(TABLE_SUFFIXES):
            message = f"{chosen!r} ends in none of {', '.join(TABLE_SUFFIXES)}."
            hint = "Save the caption table as CSV or JSON, and select it again."
            raise InvalidInput.at("table", message, hint)
        return [side_files.normalize_path(chosen)]
    tables = [path for path in find_tables({**texts, **files}, TABLE_SUFFIXES) if path in texts]
    manifests = [path for path in tables if PurePosixPath(path).name in FULL_MANIFEST_NAMES]
    if len(manifests) > 1:
        message = f"Several files can be the manifest: {', '.join(sorted(manifests)[:5])}."
        raise InvalidInput.at("table", message, "Select one of them as the caption table.")
    return manifests or sorted(tables)


def _find_videos(
    files: Mapping[str, tasks.LocalFile], named: Container[str], sidecars: Container[str]
) -> tuple[list[str], list[tasks.OmittedPath]]:
    """Separate the paths of videos, which tables name or whose extension tells, from other files than side files."""
    paths: list[str] = []
    skipped: list[tasks.OmittedPath] = []
    for path, file in files.items():
        if not side_files.is_video_name(path) and path not in named:
            reason = "" if path in sidecars else _describe(path.lower())
        elif file.size > request_limits.MAX_VIDEO_BYTES:
            reason = f"larger than {request_limits.MAX_VIDEO_BYTES / 1024**3:g} GiB"
        elif not file.size:
            reason = "empty file"
        else:
            paths.append(path)
            continue
        if reason:
            skipped.append(tasks.OmittedPath(path=file.path, reason=reason))
    return sorted(paths), skipped


def _describe(lowered: str) -> str:
    """Say what a file is that is no video."""
    if lowered.endswith(_ARCHIVE_SUFFIXES):
        return "archive: select it alone, or unpack it"
    if lowered.endswith(TYPED_SUFFIXES):
        return "table of a spreadsheet: save it as CSV"
    return "not a video"


def _other_encoding(request: tasks.PreviewRequest) -> str | None:
    """Suggest an encoding for text files that are not UTF-8; None if they are, or if it would not help."""
    contents = (text.content for text in request.texts if not _can_decode(text.content, "utf-8"))
    first = next(contents, b"")
    is_windows = bool(first) and not first.startswith(UTF16_MARKS) and _can_decode(first, _OTHER_ENCODING)
    return _OTHER_ENCODING if is_windows and request.encoding.lower() in _UTF8 else None


def _can_decode(content: bytes, encoding: str) -> bool:
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _check_destination(
    request: tasks.PreviewRequest, videos: Sequence[tasks.VideoSpec]
) -> tuple[str | None, list[FieldError]]:
    """Check the domain; return its name, and the task's errors other than those in videos."""
    errors: list[FieldError] = []
    domain = request.name if request.into is None else None
    if request.into is None:
        fields = {"method": request.method, "settings": request.settings, "backbone": request.backbone}
        name = "unnamed" if request.name is None else request.name
        try:
            spec = tasks.TaskSpec.model_validate({**fields, "name": name, "videos": [{"uri": "any"}]})
            errors += task_errors(**task_fields(spec.method, spec.settings, spec.backbone))
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


def _limit_problems(files: Sequence[tasks.LocalFile]) -> Iterator[FieldError]:
    if len(files) > request_limits.MAX_VIDEOS_PER_TASK:
        hint = f"Select at most {request_limits.MAX_VIDEOS_PER_TASK}, and append the others later."
        yield FieldError("files", f"{len(files)} videos are more than a task may have.", hint)
    needed = sum(file.size for file in files if file.upload is None)
    available = max(0, upload_store.available_bytes())
    if needed > available:
        room = f"{available / 1024**3:.1f} GiB"
        message = f"The files have {needed / 1024**3:.1f} GiB; the server has room for {room}."
        yield FieldError("files", message, "Select fewer files, and append the others later.")
