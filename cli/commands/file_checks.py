"""Checks of the files beside the index: videos in the data folder, thumbnails, the rank ledger, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from service.core.settings import Settings

__all__ = ["FileFault", "FileReport", "check_catalog_file", "check_files", "resolve_stored_video"]

FileKind = Literal["video", "thumbnail", "ledger", "checkpoint"]

_PAGE_ROWS = 1000


@dataclass(frozen=True)
class FileFault:
    """A damaged file or folder.

    Attributes:
        kind: Kind of the file.
        path: The file.
        text: The fault as a clause that names the file relative to the data folder.
        video_id: Of a video or thumbnail: identifier of the video.
    """

    kind: FileKind
    path: Path
    text: str
    video_id: str = ""


@dataclass
class FileReport:
    """Result of the check of all files.

    Attributes:
        faults: Damaged files.
        verified: Number of files whose checksums are correct.
        unverified: Number of thumbnails without a checksum, which an earlier version wrote.
        missing_thumbnails: Identifiers of accepted videos without a thumbnail; a restored backup contains none.
    """

    faults: list[FileFault] = field(default_factory=list)
    verified: int = 0
    unverified: int = 0
    missing_thumbnails: list[str] = field(default_factory=list)


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

    Files of videos outside the data folder belong to the user and are not read. Files of running uploads and trainings
    that no catalog row or checksum describes are not checked.

    Args:
        settings: Settings of the library.
    """
    from service.catalog.database import sqlite_path

    report = FileReport()
    file = sqlite_path(settings.database_url)
    if file is None or file.exists():
        for video_id, uri, content_hash in _accepted_videos():
            _check_video(settings, report, video_id, uri, content_hash)
            _check_thumbnail(settings, report, video_id)
    _check_ledger(settings, report)
    _check_checkpoints(settings, report)
    return report


def resolve_stored_video(settings: Settings, uri: str) -> Path | None:
    """The file of a video in the data folder; None if it is missing or stored elsewhere."""
    from media.errors import MediaError
    from media.sources.source_uris import is_source_uri
    from service.storage.library_paths import resolve_video_path

    if is_source_uri(uri):
        return None
    try:
        path = resolve_video_path(uri)
    except (MediaError, OSError):
        return None
    return path if path.is_relative_to(settings.data_dir) else None


def _accepted_videos() -> Iterator[tuple[str, str, str]]:
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
            yield row.id, row.uri, row.content_hash or ""


def _check_video(settings: Settings, report: FileReport, video_id: str, uri: str, content_hash: str) -> None:
    from media.media_paths import content_hash as read_hash

    path = resolve_stored_video(settings, uri)
    if path is None or not content_hash:
        return
    try:
        problem = None if read_hash(path) == content_hash else "was altered since it was learned"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    _record(settings, report, "video", path, problem, video_id)


def _check_thumbnail(settings: Settings, report: FileReport, video_id: str) -> None:
    from media.content_seal import read_seal

    path = settings.thumbnails_dir / f"{video_id}.jpg"
    try:
        state = read_seal(path)
    except FileNotFoundError:
        report.missing_thumbnails.append(video_id)
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
