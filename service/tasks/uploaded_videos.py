"""Turn complete uploads into a new task's files, and remove folders that belong to no task."""

from __future__ import annotations

import math
import os
import re
import shutil
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath

from sqlalchemy import exists, select

from cinestrata_schemas.tasks import VideoSpec
from index.files.durable_files import sync
from service.catalog.database import id_chunks, session_scope
from service.catalog.tables import Task, Video
from service.core.errors import CinestrataError, FieldError, InDoubt, InvalidInput, NotFound
from service.core.settings import settings
from service.core.text_rules import CONTROL_CHARACTERS
from service.storage import index_manifest
from service.storage.library_files import UPLOAD_FOLDER, UPLOAD_SCHEME
from service.tasks.ingestion_checks import Spec
from service.tasks.upload_store import Upload, delete_upload, find_upload

_PREFIX = f"{UPLOAD_SCHEME}upl_"
_MAX_ERRORS = 20
_MAX_PART_BYTES = 200  # of 255, leaving room for a number
_MAX_DEPTH = 8
_MAX_TRIES = 20  # consecutive numbers to try; after that, each doubles the previous one
_UNSAFE = re.compile(rf"[{CONTROL_CHARACTERS}\\:]")

# A running upload writes all the time, and its task is stored within seconds of unpacking. An upload without writes for
# a day is therefore abandoned. Its age counts from the ctime, which no copy preserves, so uploads restored before their
# catalog get a day, too.
_ABANDONED_AFTER = timedelta(days=1)


@contextmanager
def adopted_uploads(spec: Spec, task_id: str) -> Iterator[Spec]:
    """Turn a specification's uploads ``upload://<upload id>`` into the files of a new task; raise InvalidInput.

    The files exist under both names until the ``with`` block ends, so a refused task leaves its uploads complete, and
    the corrected request can use them again.
    """
    uploads = _complete_uploads(spec.videos)
    if not uploads:
        yield spec
        return
    paths = dict(zip(uploads, storable_paths([upload.name for upload in uploads.values()]), strict=True))
    try:
        _link_files(uploads, paths, task_id)
        files = {uri: f"{UPLOAD_SCHEME}{task_id}/{path}" for uri, path in paths.items()}
        videos = [video.model_copy(update={"uri": files.get(video.uri, video.uri)}) for video in spec.videos]
        yield spec.model_copy(update={"videos": videos})
    except BaseException as error:
        if not isinstance(error, InDoubt):  # the task may be stored and need its files
            remove_upload(task_id)
        raise
    for upload in uploads.values():
        with suppress(CinestrataError):
            delete_upload(upload)


def storable_paths(names: Sequence[str]) -> list[str]:
    """Derive a unique, storable path from each name, an untrusted path from a client's machine."""
    files: set[str] = set()
    folders: set[str] = set()
    last_numbers: dict[str, int] = {}
    stored = []

    def is_taken(path: PurePosixPath) -> bool:  # by a file or folder, or a file blocks one of its folders
        key = _key(path)
        return key in files or key in folders or not files.isdisjoint(map(_key, path.parents))

    for name in names:
        path = candidate = _storable_path(name)
        tried = 0
        while is_taken(candidate):
            tried += 1
            number = last_numbers.get(_key(path), 1)
            # Names that use up all small numbers must not cost one try each.
            last_numbers[_key(path)] = number + (1 if tried < _MAX_TRIES else number)
            candidate = _add_number(path, last_numbers[_key(path)])
        files.add(_key(candidate))
        folders.update(map(_key, candidate.parents))
        stored.append(str(candidate))
    return stored


def _key(path: PurePosixPath) -> str:
    return str(path).casefold()  # some file systems ignore case


def _add_number(path: PurePosixPath, number: int) -> PurePosixPath:
    """Number a path's first folder, or the file if it is in none."""
    if len(path.parts) == 1:
        return path.with_stem(f"{path.stem} ({number})")
    return PurePosixPath(f"{path.parts[0]} ({number})", *path.parts[1:])


def _storable_path(name: str) -> PurePosixPath:
    names = unicodedata.normalize("NFC", name).replace("\\", "/").split("/")
    parts = [part for raw in names if (part := _UNSAFE.sub("_", raw).strip()) not in ("", ".", "..")]
    return PurePosixPath(*map(_shorten, parts[-_MAX_DEPTH:] or ["video"]))


def _shorten(part: str) -> str:
    """Shorten a name to file system limits, keeping its extension."""
    if len(part.encode()) <= _MAX_PART_BYTES:  # splitting "..." at its last dot would leave ".."
        return part
    stem, dot, ending = part.rpartition(".")
    if not dot or len(ending) > 10:
        stem, ending = part, ""
    ending = dot + ending if ending else ""
    room = _MAX_PART_BYTES - len(ending.encode())
    return stem.encode()[:room].decode(errors="ignore") + ending


def _complete_uploads(videos: Sequence[VideoSpec]) -> dict[str, Upload]:
    """Find the uploads that videos use, by URI; raise InvalidInput."""
    uploads: dict[str, Upload] = {}
    errors: list[FieldError] = []
    for number, video in enumerate(videos):
        if not video.uri.startswith(_PREFIX) or video.uri in uploads:
            continue
        field = f"videos[{number}].uri"
        try:
            upload = find_upload(video.uri.removeprefix(UPLOAD_SCHEME))
            received = upload.received
        except NotFound:
            message = "There is no such upload; it has expired, was deleted, or belongs to a task."
            errors.append(FieldError(field, message, "Upload the file again."))
        else:
            uploads[video.uri] = upload
            if received < upload.size:
                message = f"The upload is incomplete: {received} of {upload.size} bytes are stored."
                errors.append(FieldError(field, message, "Send the remaining bytes first."))
        if len(errors) == _MAX_ERRORS:
            break
    if errors:
        raise InvalidInput.of(errors)
    return uploads


def _link_files(uploads: dict[str, Upload], paths: dict[str, str], task_id: str) -> None:
    folder = settings().uploads_dir / task_id
    folders = {folder, folder.parent}
    for uri, upload in uploads.items():
        target = folder / paths[uri]
        target.parent.mkdir(parents=True, exist_ok=True)
        folders.update(parent for parent in target.parents if folder in parent.parents)
        try:
            os.link(upload.path, target)
        except FileNotFoundError:
            raise InvalidInput.at(
                "videos", "An upload was deleted or used in the meantime.", "Upload the files again."
            ) from None
        except FileExistsError:  # a copy would replace the file
            message = f"The server's file system can't distinguish {paths[uri]!r} from another video's name."
            raise InvalidInput.at("videos", message, "Rename one of them, and upload it again.") from None
        except OSError:  # a file system without links
            shutil.copyfile(upload.path, target)
        sync(target)  # a writer killed after the last byte has not done so
    for each in folders:
        sync(each)


def remove_upload(upload: str) -> None:
    """Delete the unpacked files of a task that was not stored."""
    shutil.rmtree(settings().uploads_dir / upload, ignore_errors=True)


def renew_uploads() -> list[str]:
    """Restart the day after which unpacked files without a task are deleted; return the names of their folders.

    A restored catalog has no tasks for uploads newer than its backup. Raises OSError.
    """
    uploads = _list_uploads()
    for name in uploads:
        os.utime(settings().uploads_dir / name)
    return uploads


def find_unstored_uploads() -> list[str]:
    """Find the folders of unpacked files whose task is not stored; raise Unavailable.

    Folders whose task has a shard in the index are left out, and so are those with files that another task's video
    uses, even if their own task's row is gone.
    """
    uploads = _list_uploads()
    with session_scope() as session:
        stored = {
            task
            for chunk in id_chunks(uploads)
            for task in session.scalars(select(Task.id).where(Task.id.in_(chunk)))
        }
        orphans = [
            name
            for name in uploads
            if name not in stored
            and not session.scalar(select(exists().where(Video.uri.contains(name, autoescape=True))))
        ]
    if orphans:
        published = index_manifest.read_manifest().shards
        orphans = [name for name in orphans if name not in published]
    return orphans


def sweep_uploads() -> list[str]:
    """Delete files of tasks never stored, unchanged for a day; return their folders' names; raise Unavailable."""
    folder = settings().uploads_dir
    abandoned_before = time.time() - _ABANDONED_AFTER.total_seconds()
    abandoned = [name for name in find_unstored_uploads() if _last_change(folder / name) < abandoned_before]
    for name in abandoned:
        remove_upload(name)
    return abandoned


def _list_uploads() -> list[str]:
    return sorted(
        path.name
        for path in settings().uploads_dir.glob("tsk_*")
        if UPLOAD_FOLDER.fullmatch(path.name) and path.is_dir()
    )


def _last_change(folder: Path) -> float:
    """Find a folder's newest ctime in seconds since the epoch; infinity if another process is removing it."""
    try:
        return max(path.lstat().st_ctime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:
        return math.inf
