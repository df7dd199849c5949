"""Remember the files that domains follow: list them, and record what a sync saw."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence

import structlog
from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.syncs import FollowedSource, StoredFile, StoredFilePage, SyncedFilesPatch
from media.errors import MediaError
from service.access.audit_log import record_change
from service.catalog import operation_tables
from service.catalog.database import id_chunks, session_scope
from service.catalog.domain_videos import number_edits
from service.catalog.keyset_paging import KeysetOrders
from service.catalog.tables import FileRemoval, Task, Video
from service.catalog.task_names import require_task
from service.core.errors import InvalidInput
from service.core.list_parameters import SyncedFileFilters
from service.core.settings import settings
from service.storage.library_files import UPLOAD_SCHEME, resolve_video_path
from service.syncs.sync_plan import file_key
from service.tasks.ingestion_checks import uri_errors
from service.tasks.task_storage import new_id
from service.tasks.uploaded_videos import storable_paths

log = structlog.get_logger(__name__)

_ORDERS = KeysetOrders({"id": operation_tables.SyncedFile.id}, unique=operation_tables.SyncedFile.id)
_FIELDS = tuple(StoredFile.model_fields)


def list_files(wanted: SyncedFileFilters) -> StoredFilePage:
    """List a page of followed files, of all domains or one; raise NotFound, or InvalidInput for a wrong cursor."""
    query = select(operation_tables.SyncedFile)
    if wanted.sha256:
        query = query.where(operation_tables.SyncedFile.sha256.in_(wanted.sha256))
    with session_scope() as session:
        if wanted.task is not None:
            query = query.where(operation_tables.SyncedFile.task_id == require_task(session, wanted.task).id)
        page = _ORDERS.read_page(session, query, "id", wanted.cursor, wanted.limit)
        files = [
            StoredFile.model_construct(**{name: getattr(row, name) for name in _FIELDS}) for row in page.rows
        ]
    return StoredFilePage(files=files, next_cursor=page.next_cursor)


def iterate_files(domain: str | None, sha256: Sequence[str]) -> Iterator[StoredFile]:
    """Iterate over all pages of :func:`list_files`."""
    wanted = SyncedFileFilters(task=domain, sha256=list(sha256), limit=1000)
    yield from (page := list_files(wanted)).files
    while page.next_cursor is not None:
        wanted.cursor = page.next_cursor
        yield from (page := list_files(wanted)).files


def list_sources() -> list[FollowedSource]:
    """List the sources that domains follow, or have followed."""
    query = (
        select(operation_tables.SyncedFile.task_id, operation_tables.SyncedFile.source)
        .join(Task)
        .where(Task.deleted_at.is_(None))
    )
    with session_scope() as session:
        return [
            FollowedSource(task_id=task, source=source) for task, source in session.execute(query.distinct())
        ]


def record_files(patch: SyncedFilesPatch) -> None:
    """Record what a sync saw, and rename videos, in one transaction. Idempotent; raise NotFound, InvalidInput (URI)."""
    if "\0" in patch.source:
        raise InvalidInput.at("source", "The source contains a NUL character.", "Remove it.")
    folder = f"{UPLOAD_SCHEME}{new_id('tsk')}/"
    uploads = dict(zip(patch.renamed, storable_paths(list(patch.renamed.values())), strict=True))
    with session_scope(write=True) as session:
        domain = require_task(session, patch.task_id).id
        session.scalars(select(Task.id).where(Task.id == domain).with_for_update()).one()
        keys = {file_key(patch.source, file.path or f"\0{file.video_id}"): file for file in patch.files}
        for chunk in id_chunks([*keys, *patch.forgotten]):
            session.execute(
                delete(operation_tables.SyncedFile).where(
                    operation_tables.SyncedFile.task_id == domain, operation_tables.SyncedFile.key.in_(chunk)
                )
            )
        if keys:
            session.execute(
                insert(operation_tables.SyncedFile),
                [
                    {"task_id": domain, "key": key, "source": patch.source} | file.model_dump()
                    for key, file in keys.items()
                ],
            )
        renamed: list[Video] = []
        followed = select(operation_tables.SyncedFile.video_id).where(
            operation_tables.SyncedFile.task_id == domain
        )
        for chunk in id_chunks(list(patch.renamed)):
            videos = select(Video).where(
                Video.id.in_(chunk), Video.id.in_(followed), Video.status == "accepted"
            )
            renamed += session.scalars(videos).all()
        renamed = [
            video
            for video in renamed
            if _rename(session, video, patch.renamed[video.id], folder + uploads[video.id])
        ]
        if renamed:
            session.execute(
                update(Task)
                .where(Task.id.in_({video.task_id for video in renamed}))
                .values(metadata_edits=Task.metadata_edits + 1)
                .execution_options(synchronize_session=False)
            )
            record_change(session, "sync.rename", domain, {"videos": len(renamed)})
            number_edits(session, [video.vector_id for video in renamed])


def _rename(session: Session, video: Video, uri: str, upload: str) -> bool:
    """Give a video its new URI, read in place or uploaded; False if its upload is lost, as after a restore."""
    if video.uri.startswith(UPLOAD_SCHEME):
        if not _link(video.uri, upload):
            return False
        # The earlier name stays until the commit, so that no kill loses the file.
        session.add(FileRemoval(video_id=video.id, uri=video.uri))
        video.uri = upload
    else:
        if error := next(uri_errors(f"renamed.{video.id}", uri), None):
            raise InvalidInput.of([error])
        video.uri = uri
    return True


def _link(uri: str, renamed: str) -> bool:
    after = settings().uploads_dir / renamed.removeprefix(UPLOAD_SCHEME)
    try:
        before = resolve_video_path(uri)
        after.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(before, after)
        except OSError:  # a file system without hard links
            shutil.copy2(before, after)
    except (MediaError, OSError) as error:
        log.warning("upload_not_renamed", uri=uri, error=str(error))
        return False
    return True
