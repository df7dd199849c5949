"""``cinestrata doctor --restore-from``: restore damaged index files from a backup, and previews from videos."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cli.commands.library_checks import check_files
from service.backups.backup_files import (
    MANIFEST,
    BackupDamaged,
    BackupFile,
    FileOpener,
    copy_and_verify,
    open_backup,
    read_description,
)

if TYPE_CHECKING:
    from index.files.manifest_format import Manifest
    from index.shard_store import ShardStore
    from service.core.settings import Settings


@dataclass
class RestoreReport:
    """Lines that name the restored files, and the files that stay damaged with reasons."""

    restored: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def restore_files(settings: Settings, backup: Path) -> RestoreReport:
    """Copy damaged files from a backup, byte for byte as published. Intact files are left alone.

    Backups contain no previews, so these are recreated. The library's processes may keep running.

    Raises:
        OSError, tarfile.TarError, BackupDamaged: The backup cannot be read.
    """
    from index.errors import ManifestError
    from service.core.errors import Unavailable
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

    Raises:
        ManifestError: The backup has a different generation of the manifest.
        Unavailable: Another writer holds the lock of the index.
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
        if not published <= copy.folder_ids() or set(copy.shards) != _catalog_shards():
            raise ManifestError(
                "the backup is from another generation or library; restore it into a new data folder "
                "with: cinestrata restore"
            )
        replace_text(store.manifest_path, copy.dumps())
        report.restored.append(MANIFEST)
        return copy


def _catalog_shards() -> set[str]:
    """Return the tasks that have a shard according to the catalog."""
    from sqlalchemy import select

    from service.catalog.database import session_scope
    from service.catalog.tables import Shard

    with session_scope() as session:
        return set(session.scalars(select(Shard.task_id)))


def _damaged_files(store: ShardStore, manifest: Manifest) -> Iterator[tuple[Path, str]]:
    """Yield missing or altered files of a generation, with the SHA-256 of the published files."""
    from index.files.durable_files import find_damage

    folders = [
        *((store.release_folder(entry.id), entry.files) for entry in manifest.releases.values()),
        *((store.tombstone_folder(entry.id), entry.files) for entry in manifest.tombstones.values()),
        *((store.shard_folder(entry.id), entry.files) for entry in manifest.all_segments()),
    ]
    for folder, files in folders:
        for name, digest in files.items():
            if find_damage(folder, {name: digest}, None, verify=True):
                yield folder / name, digest


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
    from sqlalchemy import select

    from media import MediaError, VideoDecoder, VideoLimits
    from models.backbones.backbone_loading import frame_spec
    from service.catalog.database import session_scope
    from service.catalog.tables import Video
    from service.core import request_limits
    from service.core.errors import CinestrataError
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
