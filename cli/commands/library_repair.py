"""``cinestrata doctor --repair``: restore damaged files from a backup and from intact files of the library."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cli.commands.file_checks import FileFault, check_catalog_file, check_files
from service.backups.backup_files import BackupDamaged, FileOpener, open_backup, read_description

if TYPE_CHECKING:
    from index.arrays import Ids
    from index.file_repair import DamagedFile
    from index.files.manifest_format import Manifest
    from index.shard_store import ShardStore
    from service.core.settings import Settings

__all__ = ["RepairReport", "repair_library"]


@dataclass
class RepairReport:
    """Result of a repair.

    Attributes:
        repaired: Restored files, each with its source, as sentences.
        lost: Files that cannot be restored, each with the consequence, as sentences.
    """

    repaired: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def repair_library(settings: Settings, backup: Path | None) -> RepairReport:
    """Restore damaged files, byte for byte as they were published. Intact files are not touched.

    Args:
        settings: Settings of the library. Its processes may run.
        backup: Backup of the library that damaged files of the index are taken from; None: no backup.

    Raises:
        OSError, tarfile.TarError, BackupDamaged: The backup cannot be read.
    """
    from service.audit.actor import command_line_actor, set_process_actor

    set_process_actor(command_line_actor())
    report = RepairReport()
    with ExitStack() as stack:
        open_file = stack.enter_context(open_backup(backup)) if backup is not None else None
        copies = _index_copies(open_file)
        if _repair_catalog(settings, report):
            _repair_index(settings, copies, report)
            _repair_files(settings, report)
    return report


def _index_copies(open_file: FileOpener | None) -> Callable[[str], bytes | None]:
    described = {} if open_file is None else read_description(open_file)

    def read(name: str) -> bytes | None:
        if open_file is None or f"index/{name}" not in described:
            return None
        try:
            with open_file(f"index/{name}") as file:
                return file.read(described[f"index/{name}"].bytes)
        except (OSError, KeyError, BackupDamaged, tarfile.TarError):
            return None  # the other files of the backup may be intact

    return read


def _repair_catalog(settings: Settings, report: RepairReport) -> bool:
    """Make the indexes of an SQLite catalog again; returns whether the catalog can be read."""
    import sqlite3
    from contextlib import closing

    from service.catalog.database import dispose, sqlite_path

    file = sqlite_path(settings.database_url)
    if file is None or not file.exists() or not check_catalog_file(file):
        return True
    dispose()
    with suppress(sqlite3.Error), closing(sqlite3.connect(file, timeout=30)) as connection:
        connection.execute("REINDEX")
    faults = check_catalog_file(file)
    if not faults:
        report.repaired.append(f"{file.name}: its indexes were made again from its tables")
        return True
    report.lost.append(
        f"{file.name} is damaged ({faults[0]}) and cannot be restored in place. Restore a backup of catalog and index "
        "into a new data folder: cinestrata restore BACKUP --data DIR"
    )
    return False


def _repair_index(settings: Settings, copies: Callable[[str], bytes | None], report: RepairReport) -> None:
    from index.errors import ManifestError
    from index.file_repair import find_damaged_files, restore_file
    from service.core.errors import Unavailable
    from service.storage.vector_store_selection import library_store

    store = library_store(settings)
    if not settings.index_dir.exists():
        return
    try:
        manifest = _repair_manifest(store, copies, report)
    except ManifestError as error:
        report.lost.append(f"manifest.json cannot be restored: {error}")
        return
    except OSError as error:
        report.lost.append(f"index/manifest.json cannot be written ({error.strerror})")
        return
    except Unavailable as error:
        report.lost.append(f"index/manifest.json is not repaired yet, and nothing of the index: {error}")
        return
    damaged = []
    for file in find_damaged_files(store, manifest):
        try:
            if restore_file(file, copies(file.name)):
                report.repaired.append(f"index/{file.name}: copied from the backup")
            elif restore_file(file, _derived_content(store, manifest, file)):
                report.repaired.append(
                    f"index/{file.name}: made again, with the checksum of the published file"
                )
            else:
                damaged.append(file)
        except OSError as error:  # such as a folder in its place
            report.lost.append(
                f"index/{file.name} cannot be written ({error.strerror}): correct this and repair again"
            )
    _repair_structures(store, damaged, report)


def _repair_manifest(
    store: ShardStore, copies: Callable[[str], bytes | None], report: RepairReport
) -> Manifest:
    """The manifest, restored if it is damaged and that is possible.

    Raises:
        ManifestError: It cannot be restored.
        Unavailable: Another writer holds the lock of the index.
    """
    from index.errors import ManifestError
    from service.storage.index_lock import index_lock

    with suppress(ManifestError):  # an intact manifest needs no lock
        manifest = store.manifest()
        if manifest.release is not None and store.is_manifest_canonical():
            return manifest
    with index_lock():  # a worker that publishes meanwhile would be undone
        return _repair_locked_manifest(store, copies, report)


def _repair_locked_manifest(
    store: ShardStore, copies: Callable[[str], bytes | None], report: RepairReport
) -> Manifest:
    from index.errors import ManifestError
    from index.files.durable_files import replace_text
    from index.files.manifest_format import Manifest

    try:
        manifest = store.manifest()
        if manifest.release is None:
            raise ManifestError("manifest.json is missing")
    except ManifestError as error:
        content = copies("manifest.json")
        if content is None:
            raise ManifestError(f"{error}; name a backup of this generation with --from") from error
        copy = Manifest.loads(content.decode("utf-8", "replace"))
        published = {path.name for parent in _sealed_parents(store) for path in parent.iterdir()}
        if not published <= copy.folder_ids():
            raise ManifestError(
                "the index contains folders that the manifest of the backup does not name, so the backup is older than "
                "the library; restore the backup into a new data folder"
            ) from error
        if set(copy.shards) != _catalog_shards():
            raise ManifestError(
                "the catalog has other shards than the manifest of the backup, so it is a backup of another generation "
                "or library; restore it into a new data folder"
            ) from error
        replace_text(store.manifest_path, copy.dumps())
        report.repaired.append("index/manifest.json: copied from the backup of the same generation")
        return copy
    if not store.is_manifest_canonical():
        replace_text(store.manifest_path, manifest.dumps())
        report.repaired.append("index/manifest.json: written again from its values")
    return manifest


def _sealed_parents(store: ShardStore) -> list[Path]:
    parents = (store.shards_path, store.releases_path, store.tombstones_path)
    return [parent for parent in parents if parent.exists()]


def _derived_content(store: ShardStore, manifest: Manifest, file: DamagedFile) -> bytes | None:
    """Content of a file that other files or the catalog determine; None for other files."""
    from index.errors import ShardStoreError
    from index.file_repair import describe_text, encode_ids
    from index.files.segment_files import DESCRIPTION, IDS, load_ids
    from index.files.tombstones import TOMBSTONES

    try:
        if file.segment is not None and file.path.name == DESCRIPTION:
            return describe_text(file.segment)
        if file.segment is not None and file.path.name == IDS:
            segment, deleted = file.segment, store.tombstones(manifest, file.task)
            ids = np.union1d(_catalog_ids(file.task), deleted)
            return encode_ids(ids[(ids >= segment.first_id) & (ids <= segment.last_id)])
        if file.segment is None and file.path.name == TOMBSTONES:
            segments = manifest.segments(file.task)
            stored = np.concatenate([load_ids(store.shard_folder(entry.id), entry) for entry in segments])
            return encode_ids(np.setdiff1d(stored, _catalog_ids(file.task)))
    except ShardStoreError:  # a file that it is derived from is damaged, too
        return None
    return None


def _catalog_ids(task: str) -> Ids:
    """Vector ids of the accepted videos of a task and of their moments, ascending."""
    from sqlalchemy import select

    from service.catalog.database import session_scope
    from service.catalog.tables import Moment, Video

    accepted = (Video.task_id == task, Video.status == "accepted")
    with session_scope() as session:
        videos = session.scalars(select(Video.vector_id).where(*accepted)).all()
        moments = session.scalars(
            select(Moment.vector_id).join(Video, Video.vector_id == Moment.video_vector_id).where(*accepted)
        ).all()
    return np.array(sorted([*videos, *moments]), np.int64)


def _catalog_shards() -> set[str]:
    """Tasks that have a shard according to the catalog."""
    from sqlalchemy import select

    from service.catalog.database import session_scope
    from service.catalog.tables import Shard

    with session_scope() as session:
        return set(session.scalars(select(Shard.task_id)))


def _repair_structures(store: ShardStore, damaged: list[DamagedFile], report: RepairReport) -> None:
    """Rebuild the segments that only lack their ANN structure or its queries; report the other files as lost."""
    from index.errors import ShardStoreError
    from index.files.segment_files import QUERIES, STRUCTURE
    from index.structure_repair import rebuild_structure
    from service.library.compaction import update_shard_rows

    by_segment: dict[str, list[DamagedFile]] = {}
    for file in damaged:
        by_segment.setdefault(file.segment.id if file.segment else file.name, []).append(file)
    for files in by_segment.values():
        segment = files[0].segment
        if segment is not None and all(file.path.name in (STRUCTURE, QUERIES) for file in files):
            try:
                update_shard_rows(rebuild_structure(store, segment), [segment.task], "shard.repair")
                report.repaired.append(
                    f"task {segment.task}: the search structure of shard {segment.id[:12]} was made again from its "
                    "vectors"
                )
                continue
            except (ShardStoreError, OSError) as error:
                report.lost.append(f"shard {segment.id[:12]} of task {segment.task}: {error}")
                continue
        report.lost += [_loss(file) for file in files]


def _loss(file: DamagedFile) -> str:
    if file.segment is not None:
        consequence = (
            f"task {file.task} is not searched. Embedding its videos again need not give the same vectors: restore the "
            "file from a backup (--from), or delete the domain and post its videos again"
        )
    elif file.task:
        consequence = (
            f"deleted videos of task {file.task} are unknown, so it is not searched; restore it from a backup"
        )
    else:
        consequence = (
            "the tasks of this release are not searched, and no task is learned; restore it from a backup"
        )
    return f"index/{file.name} cannot be restored: {consequence}"


def _repair_files(settings: Settings, report: RepairReport) -> None:
    found = check_files(settings)
    damaged_videos = {fault.video_id for fault in found.faults if fault.kind in ("video", "missing video")}
    for fault in found.faults:
        _repair_file(settings, fault, damaged_videos, report)
    for video_id in found.missing_thumbnails:
        if video_id not in damaged_videos:
            _write_thumbnail(settings, video_id, report, "made from its video", is_optional=True)


def _repair_file(
    settings: Settings, fault: FileFault, damaged_videos: set[str], report: RepairReport
) -> None:
    name = fault.path.relative_to(settings.data_dir)
    if fault.kind == "missing video":
        report.lost.append(
            f"{fault.text}. The library has no other copy of the file: the video is still searched, but not played. "
            "Backups contain no videos: copy the file from its origin"
        )
    elif fault.kind == "video":
        report.lost.append(
            f"{name} was altered and exists only once: its video is still searched, but its playback is damaged. Copy "
            "the file from its origin"
        )
    elif fault.kind == "thumbnail" and fault.video_id in damaged_videos:
        report.lost.append(f"{name} cannot be made again, because its video is damaged or missing")
    elif fault.kind == "thumbnail":
        _write_thumbnail(settings, fault.video_id, report, "made again from its video")
    elif fault.kind == "checkpoint":
        _remove(fault.path, report, name, "the training begins again, or at an earlier epoch")
    else:
        _remove(fault.path, report, name, "the next task computes the ranks again")


def _remove(path: Path, report: RepairReport, name: Path, consequence: str) -> None:
    """Remove a file, a folder, or a link but not its target."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        report.lost.append(f"{name} cannot be removed ({error.strerror})")
    else:
        report.repaired.append(f"{name}: removed; {consequence}")


def _write_thumbnail(
    settings: Settings, video_id: str, report: RepairReport, how: str, *, is_optional: bool = False
) -> None:
    """Decode a video again for its thumbnail; the sampled frames are not kept."""
    from sqlalchemy import select

    from media import MediaError, VideoDecoder, VideoLimits
    from models.backbones.backbone_loading import frame_spec
    from service.catalog.database import session_scope
    from service.catalog.tables import Video
    from service.core import request_limits
    from service.core.errors import CinestrataError
    from service.storage.library_backbone import library_backbone
    from service.storage.library_paths import thumbnail_path
    from service.storage.video_access import local_video

    with session_scope() as session:
        uri = session.scalars(select(Video.uri).where(Video.id == video_id)).one()
    spec = frame_spec(library_backbone(settings), settings.frames)
    path = thumbnail_path(video_id)
    name = path.relative_to(settings.data_dir)
    try:
        with (
            local_video(uri) as file,
            VideoDecoder(VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES)) as decoder,
        ):
            decoder.decode(file, frames=spec.frames, size=spec.size, thumbnail=path)
    except (CinestrataError, MediaError, OSError) as error:
        if not is_optional:
            report.lost.append(f"{name} cannot be made again: {error}")
        return
    report.repaired.append(f"{name}: {how}")
