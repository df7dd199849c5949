"""Check a library for ``cinestrata doctor``: releases, shards, catalog, videos, previews and checkpoints."""

from __future__ import annotations

import os
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import select

from cinestrata_schemas.uris import is_source_uri
from index.files.manifest_format import task_of
from service.backups.backup_files import (
    MANIFEST,
    BackupDamaged,
    BackupFile,
    FileOpener,
    copy_and_verify,
    open_backup,
    read_description,
)
from service.catalog.database import continue_edit_numbers, id_chunks, session_scope, sqlite_path
from service.catalog.tables import FINAL_STATES, EditCounter, Shard, Task, Video
from service.core import request_limits
from service.core.errors import CinestrataError, Unavailable
from service.core.settings import Settings

if TYPE_CHECKING:
    from index.files.manifest_format import Manifest
    from index.integrity_audit import Audit
    from index.shard_store import ShardStore
    from models.releases.release_state import TaskLineage

_PAGE_ROWS = 1000
_HINT = "restore catalog and index from the same backup"


@dataclass
class FileReport:
    """Result of checking all files outside the index; faults and missing uploads are phrases that name the file."""

    faults: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    previews: list[str] = field(default_factory=list)  # IDs of videos without an intact preview
    impossible_previews: int = 0  # missing previews of missing videos
    verified: int = 0  # files with correct checksums


def check_releases(settings: Settings, audit: Audit) -> list[str]:
    """Find faults in the releases: each must be readable, fit its parent, and know the shards that it made.

    Skips releases with damaged files, because the audit reports them.
    """
    from index.shard_store import ShardStore
    from models.encoders.encoder_registry import read_query_release
    from models.errors import ModelError
    from models.releases.release_files import read_lineage

    store, manifest = ShardStore(settings.index_dir), audit.manifest
    faults: list[str] = []
    learned: dict[str, TaskLineage] = {}
    for identifier in manifest.releases:
        if identifier in audit.damaged_releases:
            continue
        folder = store.release_folder(identifier)
        try:
            learned[identifier] = read_lineage(folder)
            read_query_release(folder, profiles=False)
        except (ModelError, OSError) as error:
            faults.append(str(error))
    parents = {identifier: each.parent.release for identifier, each in learned.items() if each.parent}
    for identifier, release in learned.items():
        name, parent = f"release {identifier[:12]}", parents.get(identifier)
        if parent is not None and parent not in manifest.releases:
            faults.append(f"{name}: its parent release {parent[:12]} is missing")
        elif identifier not in parents.values():
            try:
                release.resolve(learned.__getitem__)
            except KeyError:
                pass  # the fault of an ancestor is already listed
            except ModelError as error:
                faults.append(f"{name}: {error}")
    newest = manifest.release
    later = set[str]() if newest not in manifest.releases else set(manifest.releases_after(newest))
    for key, shard in manifest.shards.items():
        if shard.release not in learned:
            continue
        task_id = task_of(key)
        encoders = {task.task_id: task.fingerprint for task in learned[shard.release].tasks}
        if shard.release in later or task_id not in encoders:
            lacking = str(newest) if shard.release in later else shard.release
            faults.append(
                f"release {lacking[:12]}: it does not know task {task_id}, so that shard cannot be searched"
            )
        elif encoders[task_id] != shard.fingerprint:
            faults.append(
                f"release {shard.release[:12]}: it names encoder {encoders[task_id][:12]} for task {task_id}, but "
                f"encoder {shard.fingerprint[:12]} made the shard"
            )
    return faults


def check_edit_counter() -> list[str]:
    """Find a fault in the edit counter, which would hide later edits from searches; at most one sentence."""
    with session_scope() as session:
        if session.scalar(select(EditCounter.last_edit)) is None:
            return ["the catalog table edits has no row"]
        fault = continue_edit_numbers(session.connection(), repair=False)
    return [fault] if fault else []


def check_catalog(settings: Settings, audit: Audit) -> list[str]:
    """Find contradictions between the catalog and the manifest.

    May run while tasks are published: the manifest is replaced first, then the catalog.
    """
    from index.arrays import video_ids_of
    from index.shard_store import ShardStore

    file = sqlite_path(settings.database_url)
    if file and not file.exists():
        return [f"there is no catalog; {_HINT}"] if audit.manifest.shards else []
    faults: list[str] = []
    with session_scope() as session:
        states = {
            task: state
            for task, state in session.execute(select(Task.id, Task.state).where(Task.target_id.is_(None)))
        }
        rows = {
            row.task_id: (row.release_id, row.fingerprint, row.dim) for row in session.scalars(select(Shard))
        }
        for task, ids in ((task_of(key), ids) for key, ids in audit.ids.items()):
            videos = session.scalars(select(Video.vector_id).where(Video.task_id == task)).all()
            unknown = np.setdiff1d(video_ids_of(ids), np.array(videos, np.int64))
            if task in states and len(unknown):
                faults.append(
                    f"{len(unknown)} vectors of task {task} belong to no video in the catalog, for example {unknown[0]}"
                )
    # Read after the catalog: any task that the catalog calls ready was published before.
    manifest = ShardStore(settings.index_dir).manifest()
    for task, state in states.items():
        if state == "ready" and task not in manifest.shards:
            faults.append(f"task {task} is ready, but the manifest has no shard for it; {_HINT}")
    for key, shard in manifest.shards.items():
        if (task := task_of(key)) not in states:
            faults.append(f"the shard of task {task} belongs to no task in the catalog; {_HINT}")
        elif key != task:  # the catalog describes the task's other shard
            continue
        elif task in rows and rows[task] != (shard.release, shard.fingerprint, shard.dim):
            faults.append(f"the catalog and the manifest describe different shards of task {task}; {_HINT}")
        elif task not in rows and states[task] in FINAL_STATES:
            faults.append(
                f"task {task} is {states[task]}, but the catalog has no record of its shard; {_HINT}"
            )
    return faults


def check_catalog_file(path: Path) -> list[str]:
    """Find faults in the SQLite file's structure; the file has no checksums of values."""
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
    """Compare video files with the catalog, and cached files with their checksums.

    Video files outside the data folder belong to the user and are not read. Users may also remove files that videos
    name by path, so only uploads count as missing. Files of running uploads and trainings that no catalog row or
    checksum describes are not checked.
    """
    report = FileReport()
    file = sqlite_path(settings.database_url)
    if file is None or file.exists():
        _check_videos(settings, report)
    _check_checkpoints(settings, report)
    return report


def _accepted_videos() -> Iterator[Any]:
    columns = (Video.vector_id, Video.id, Video.uri, Video.content_hash, Video.added_at)
    accepted = select(*columns).where(Video.status == "accepted").order_by(Video.vector_id).limit(_PAGE_ROWS)
    last = 0
    while True:
        with session_scope() as session:
            rows = session.execute(accepted.where(Video.vector_id > last)).all()
        if not rows:
            return
        last = rows[-1].vector_id
        yield from rows


def _check_videos(settings: Settings, report: FileReport) -> None:
    """Check the files and previews of accepted videos."""
    from media.errors import MediaError
    from service.storage.library_files import UPLOAD_SCHEME, resolve_video_path

    missing: dict[int, str] = {}  # by vector ID
    for video in _accepted_videos():
        has_video = True
        try:
            if not is_source_uri(video.uri):
                _check_content(settings, report, resolve_video_path(video.uri), video.content_hash)
        except (MediaError, OSError):
            has_video = False
            if video.uri.startswith(UPLOAD_SCHEME):
                path = settings.uploads_dir / video.uri.removeprefix(UPLOAD_SCHEME).lstrip("/")
                problem = "is no readable file" if os.path.lexists(path) else "is missing"
                missing[video.vector_id] = (
                    f"{path.relative_to(settings.data_dir)} {problem}: the file of video {video.id} ({video.uri})"
                )
        _check_preview(settings, report, video.id, has_video=has_video)
    with session_scope() as session:  # videos may have been deleted during the check
        for ids in id_chunks([*missing]):
            existing = session.scalars(select(Video.vector_id).where(Video.vector_id.in_(ids)))
            report.missing += [missing[vector_id] for vector_id in sorted(existing)]


def _check_content(settings: Settings, report: FileReport, path: Path, content: str | None) -> None:
    """Compare a video file of the data folder with its checksum."""
    from media.media_paths import content_hash

    if content and path.is_relative_to(settings.data_dir):
        problem = _problem(lambda: content_hash(path) == content, "was altered since it was learned")
        _record(settings, report, path, problem)


def _check_preview(settings: Settings, report: FileReport, video_id: str, *, has_video: bool) -> None:
    from media.media_paths import is_intact

    path = settings.thumbnails_dir / f"{video_id}.jpg"
    if path.exists():
        problem = _problem(lambda: is_intact(path), "was altered")
        _record(settings, report, path, problem and f"{problem}: doctor --restore-from BACKUP recreates it")
        if problem is None:
            return
    if has_video:
        report.previews.append(video_id)
    else:
        report.impossible_previews += 1


def _check_checkpoints(settings: Settings, report: FileReport) -> None:
    from trainer.training_checkpoint import is_intact_checkpoint

    problem = "was altered: remove it; training restarts, or resumes at an earlier epoch"
    for folder in sorted(settings.checkpoints_dir.glob("*/epoch-*[0-9]")):
        _record(settings, report, folder, None if is_intact_checkpoint(folder) else problem)


def _problem(is_intact: Callable[[], bool], alteration: str) -> str | None:
    try:
        return None if is_intact() else alteration
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _record(settings: Settings, report: FileReport, path: Path, problem: str | None) -> None:
    if problem is None:
        report.verified += 1
    else:
        report.faults.append(f"{path.relative_to(settings.data_dir)} {problem}")


@dataclass
class RestoreReport:
    """Lines that name the restored files, and the files that stay damaged with reasons."""

    restored: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def restore_files(settings: Settings, backup: Path) -> RestoreReport:
    """Copy damaged files from a backup, byte for byte as published. Intact files are left alone.

    Backups contain no previews, so these are recreated. The library's processes may keep running. Raises OSError,
    tarfile.TarError or BackupDamaged if the backup cannot be read.
    """
    from index.errors import ManifestError
    from service.storage.index_manifest import library_store

    report = RestoreReport()
    with open_backup(backup) as open_file:
        copies = read_description(open_file)
        store = library_store(settings)
        try:
            manifest = _restore_manifest(store, open_file, copies, report)
        except (ManifestError, Unavailable, OSError) as error:
            report.lost.append(f"{MANIFEST}: {error}")
        else:
            for path, digest in _damaged_files(store, manifest):
                _copy_file(path, digest, f"index/{path.relative_to(store.root)}", open_file, copies, report)
    for video_id in check_files(settings).previews:
        _write_preview(settings, video_id, report)
    return report


def _restore_manifest(
    store: ShardStore, open_file: FileOpener, copies: dict[str, BackupFile], report: RestoreReport
) -> Manifest:
    """Restore the manifest from the backup if it is damaged and nothing was published since; return it.

    Raises ManifestError if the backup has another generation, and Unavailable while another writer holds the lock.
    """
    from index.errors import ManifestError
    from index.files.durable_files import replace_text
    from index.files.manifest_format import Manifest
    from service.storage.index_manifest import index_lock

    with suppress(ManifestError):  # an intact manifest needs no lock
        manifest = store.manifest()
        if manifest.release is not None and store.is_manifest_canonical():
            return manifest
    with index_lock():  # otherwise a concurrent publication would be undone
        with suppress(ManifestError):
            manifest = store.manifest()
            if manifest.release is not None:
                if not store.is_manifest_canonical():
                    replace_text(store.manifest_path, manifest.dumps())
                    report.restored.append(MANIFEST)
                return manifest
        with open_file(MANIFEST) as file:
            copy = Manifest.loads(file.read(copies[MANIFEST].bytes).decode("utf-8", "replace"))
        parents = (store.shards_path, store.releases_path, store.tombstones_path)
        published = {path.name for parent in parents if parent.exists() for path in parent.iterdir()}
        with session_scope() as session:
            learned = set(session.scalars(select(Shard.task_id)))
        if not published <= copy.folder_ids() or set(map(task_of, copy.shards)) != learned:
            raise ManifestError(
                "the backup is from another generation or library; restore it into a new data folder "
                "with: cinestrata restore"
            )
        replace_text(store.manifest_path, copy.dumps())
        report.restored.append(MANIFEST)
        return copy


def _damaged_files(store: ShardStore, manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """Yield missing or altered files of a generation, with the SHA-256 of the published files."""
    from index.files.durable_files import find_damage
    from index.files.store_folder import list_manifest_files

    for path, digest in list_manifest_files(store, manifest).values():
        if find_damage(path.parent, {path.name: digest}, None, verify=True):
            yield path, digest


def _copy_file(
    path: Path,
    digest: str,
    name: str,
    open_file: FileOpener,
    copies: dict[str, BackupFile],
    report: RestoreReport,
) -> None:
    """Replace a file durably with its copy from the backup, if that is the published file."""
    from index.files.durable_files import replace_file, sync

    copy = copies.get(name)
    if copy is None or copy.sha256 != digest:
        report.lost.append(f"{name}: the backup has no copy of the published file")
        return
    try:
        with replace_file(path) as staged:
            copy_and_verify(open_file, name, copy, staged)
        sync(path.parent.parent)
    except (OSError, KeyError, BackupDamaged, tarfile.TarError) as error:  # other files may be intact
        report.lost.append(f"{name}: {error}")
    else:
        report.restored.append(name)


def _write_preview(settings: Settings, video_id: str, report: RestoreReport) -> None:
    """Decode a video again to recreate its preview; sampled frames are not kept."""
    from media import MediaError, VideoDecoder, VideoLimits
    from models.backbones.backbone_loading import frame_spec
    from service.storage.library_backbone import library_backbone
    from service.storage.library_files import local_video, thumbnail_path

    with session_scope() as session:
        uri = session.scalars(select(Video.uri).where(Video.id == video_id)).one()
    spec, path = frame_spec(library_backbone(settings), settings.frames), thumbnail_path(video_id)
    limits = VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES)
    try:
        with local_video(uri) as file, VideoDecoder(limits) as decoder:
            decoder.decode(file, frames=spec.frames, size=spec.size, thumbnail=path)
    except (CinestrataError, MediaError, OSError) as error:
        report.lost.append(f"{path.relative_to(settings.data_dir)}: {error}")
    else:
        report.restored.append(str(path.relative_to(settings.data_dir)))
