"""Checks of the files beside the index: videos in the data folder, thumbnails, the rank ledger, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from service.core.settings import Settings

__all__ = ["FileFault", "FileReport", "check_catalog_file", "check_files"]

FileKind = Literal["video", "missing video", "thumbnail", "ledger", "checkpoint"]

_PAGE_ROWS = 1000
_MAX_NAMED = 10  # videos of a library that has lost all uploads; other missing videos are all named


@dataclass(frozen=True)
class FileFault:
    """A damaged or missing file or folder.

    Attributes:
        kind: Kind of the file.
        path: The file.
        text: The fault as a clause that names the file relative to the data folder.
        video_id: Of a video or thumbnail: identifier of the video; empty if the fault concerns all uploads.
    """

    kind: FileKind
    path: Path
    text: str
    video_id: str = ""


@dataclass
class FileReport:
    """Result of the check of all files.

    Attributes:
        faults: Damaged files, and missing uploads of accepted videos.
        verified: Number of files whose checksums are correct.
        unverified: Number of thumbnails without a checksum, which an earlier version wrote.
        missing_thumbnails: Identifiers of accepted videos without a thumbnail; a restored backup contains none.
        impossible_thumbnails: Number of missing thumbnails that cannot be made, because their videos are missing.
        unrestored_uploads: Number of missing uploads that are no faults: a backup contains no videos, and no upload
            from before the last restore exists.
    """

    faults: list[FileFault] = field(default_factory=list)
    verified: int = 0
    unverified: int = 0
    missing_thumbnails: list[str] = field(default_factory=list)
    impossible_thumbnails: int = 0
    unrestored_uploads: int = 0


@dataclass
class _UploadReport:
    """Uploads of accepted videos.

    Attributes:
        first_present: Smallest vector id of a video whose upload exists; None if there is none.
        missing: Faults of the missing uploads by vector id, ascending.
    """

    first_present: int | None = None
    missing: dict[int, FileFault] = field(default_factory=dict)


def check_catalog_file(path: Path) -> list[str]:
    """Faults that SQLite finds in the structure of its file; it stores no checksums of values.

    Args:
        path: File of the catalog.
    """
    import sqlite3
    from contextlib import closing

    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
            results = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(10)")]
            results += [
                f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}"
                for row in connection.execute("PRAGMA foreign_key_check")
            ]
    except sqlite3.Error as error:
        return [str(error)]
    return [result for result in results if result != "ok"]


def check_files(settings: Settings) -> FileReport:
    """Compare the files of videos with the catalog, and sealed files with their seals.

    Files of videos outside the data folder belong to the user and are not read. The user may also remove files that
    videos name by path, so only uploads count as missing. Files of running uploads and trainings that no catalog row
    or checksum describes are not checked.

    Args:
        settings: Settings of the library.
    """
    from service.catalog.database import sqlite_path

    report, uploads = FileReport(), _UploadReport()
    file = sqlite_path(settings.database_url)
    if file is None or file.exists():
        for video in _accepted_videos():
            has_video = _check_video(settings, report, uploads, video)
            _check_thumbnail(settings, report, video.id, has_video=has_video)
        _add_missing_uploads(settings, report, uploads)
    _check_ledger(settings, report)
    _check_checkpoints(settings, report)
    return report


@dataclass(frozen=True)
class _AcceptedVideo:
    vector_id: int
    id: str
    uri: str
    content_hash: str


def _accepted_videos() -> Iterator[_AcceptedVideo]:
    from sqlalchemy import select

    from service.catalog.database import session_scope
    from service.catalog.tables import Video

    last = 0
    while True:
        with session_scope() as session:
            rows = session.execute(
                select(Video.vector_id, Video.id, Video.uri, Video.content_hash)
                .where(Video.status == "accepted", Video.vector_id > last)
                .order_by(Video.vector_id)
                .limit(_PAGE_ROWS)
            ).all()
        if not rows:
            return
        last = rows[-1].vector_id
        for row in rows:
            yield _AcceptedVideo(row.vector_id, row.id, row.uri, row.content_hash or "")


def _check_video(
    settings: Settings, report: FileReport, uploads: _UploadReport, video: _AcceptedVideo
) -> bool:
    """Check the file of a video; returns whether it exists, or is remote and may exist."""
    from media.errors import MediaError
    from media.media_paths import content_hash as read_hash
    from media.sources.source_uris import is_source_uri
    from service.storage.library_paths import UPLOAD_SCHEME, resolve_video_path

    if is_source_uri(video.uri):
        return True
    is_upload = video.uri.startswith(UPLOAD_SCHEME)
    try:
        path = resolve_video_path(video.uri)
    except (MediaError, OSError):
        if is_upload:
            uploads.missing[video.vector_id] = _missing_upload(settings, video)
        return False
    if is_upload and uploads.first_present is None:
        uploads.first_present = video.vector_id
    if video.content_hash and path.is_relative_to(settings.data_dir):
        try:
            problem = None if read_hash(path) == video.content_hash else "was altered since it was learned"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        _record(settings, report, "video", path, problem, video.id)
    return True


def _missing_upload(settings: Settings, video: _AcceptedVideo) -> FileFault:
    from service.storage.library_paths import UPLOAD_SCHEME

    path = settings.uploads_dir / video.uri.removeprefix(UPLOAD_SCHEME).lstrip("/")
    try:
        path.stat()
        problem = "is not a regular file of the uploads folder"
    except (FileNotFoundError, NotADirectoryError):
        problem = "is missing"
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({getattr(error, 'strerror', error)})"
    name = path.relative_to(settings.data_dir)
    return FileFault(
        "missing video", path, f"{name} {problem}: the file of video {video.id} ({video.uri})", video.id
    )


def _add_missing_uploads(settings: Settings, report: FileReport, uploads: _UploadReport) -> None:
    """Add the missing uploads to a report: as faults, or as a number where a backup was restored without them."""
    from sqlalchemy import func, select

    from service.catalog.access_tables import AuditEntry
    from service.catalog.database import id_chunks, session_scope
    from service.catalog.tables import Video

    if not uploads.missing:
        return
    first = uploads.first_present
    added: dict[int, datetime] = {}
    with session_scope() as session:
        restored = session.scalar(
            select(func.max(AuditEntry.at)).where(AuditEntry.action == "snapshot.restore")
        )
        # A video that was deleted since its row was read is not missing.
        for ids in id_chunks([*uploads.missing, *([] if first is None else [first])]):
            accepted = select(Video.vector_id, Video.added_at).where(
                Video.vector_id.in_(ids), Video.status == "accepted"
            )
            added.update({row.vector_id: row.added_at for row in session.execute(accepted)})
    faults = {vector_id: fault for vector_id, fault in uploads.missing.items() if vector_id in added}
    if restored is not None:
        older = {vector_id for vector_id, time in added.items() if time < restored}
        if first not in older:  # ids grow with time, so no upload from before the restore exists
            report.unrestored_uploads = len(older)
            faults = {vector_id: fault for vector_id, fault in faults.items() if vector_id not in older}
    if first is None and not report.unrestored_uploads and len(faults) > _MAX_NAMED:
        example = next(iter(faults.values()))
        text = f"all {len(faults)} uploaded videos are missing, for example {example.text}"
        report.faults.append(FileFault("missing video", settings.uploads_dir, text))
    else:
        report.faults += faults.values()


def _check_thumbnail(settings: Settings, report: FileReport, video_id: str, *, has_video: bool) -> None:
    from media.content_seal import read_seal

    path = settings.thumbnails_dir / f"{video_id}.jpg"
    try:
        state = read_seal(path)
    except FileNotFoundError:
        if has_video:
            report.missing_thumbnails.append(video_id)
        else:
            report.impossible_thumbnails += 1
        return
    except OSError as error:
        _record(settings, report, "thumbnail", path, f"cannot be read ({error.strerror})", video_id)
        return
    if state == "unsealed" and _is_picture(path):
        report.unverified += 1
    else:
        _record(settings, report, "thumbnail", path, None if state == "intact" else "was altered", video_id)


def _is_picture(path: Path) -> bool:
    from PIL import Image

    try:
        with Image.open(path, formats=["JPEG"]) as image:
            image.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False
    return True


def _check_ledger(settings: Settings, report: FileReport) -> None:
    from media.content_seal import read_seal

    path = settings.index_dir / "ledger.npz"
    if path.exists():
        try:
            problem = None if read_seal(path) == "intact" else "was altered"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        _record(settings, report, "ledger", path, problem)


def _check_checkpoints(settings: Settings, report: FileReport) -> None:
    from trainer.training_checkpoint import is_intact_checkpoint

    for folder in sorted(settings.checkpoints_dir.glob("*/epoch-*[0-9]")):
        _record(
            settings, report, "checkpoint", folder, None if is_intact_checkpoint(folder) else "was altered"
        )


def _record(
    settings: Settings,
    report: FileReport,
    kind: FileKind,
    path: Path,
    problem: str | None,
    video_id: str = "",
) -> None:
    if problem is None:
        report.verified += 1
        return
    name = path.relative_to(settings.data_dir)
    report.faults.append(FileFault(kind, path, f"{name} {problem}", video_id))
