"""Send local videos to a service: as paths, or packed into an archive."""

from __future__ import annotations

import os
import resource
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NoReturn

from pydantic import ValidationError
from rich.filesize import decimal

from cinestrata_client import TooLargeError, UnreachableError
from cinestrata_schemas.tasks import AppendSpec, TaskDetails, TaskSpec, VideoSpec
from cli.console import console, fail, progress_bar
from cli.service_client import MethodSettings, ServiceClient
from media.sources.media_source import is_source_uri
from service.core.errors import InvalidInput
from service.tasks.manifests.caption_tables import MANIFEST_NAMES

_MAX_LISTED = 20


@dataclass(frozen=True)
class NewDomain:
    """A domain that is created with the videos; attributes as in :class:`TaskSpec`."""

    client: ServiceClient
    name: str
    method: str | None
    settings: MethodSettings

    def send(self, videos: list[VideoSpec]) -> TaskDetails:
        """Send paths of videos that the service can read."""
        return self.client.create_task(
            TaskSpec(name=self.name, method=self.method, settings=self.settings, videos=videos)
        )

    def send_archive(self, archive: BinaryIO, filename: str) -> TaskDetails:
        """Send an archive of videos with a manifest."""
        with _sending(self.client, archive):
            return self.client.create_task_from_archive(
                archive, self.name, filename=filename, method=self.method, settings=self.settings
            )


@dataclass(frozen=True)
class LearnedDomain:
    """A learned domain that the videos are appended to."""

    client: ServiceClient
    task_id: str

    def send(self, videos: list[VideoSpec]) -> TaskDetails:
        """Send paths of videos that the service can read."""
        return self.client.append_videos(self.task_id, AppendSpec(videos=videos))

    def send_archive(self, archive: BinaryIO, filename: str) -> TaskDetails:
        """Send an archive of videos with a manifest."""
        with _sending(self.client, archive):
            return self.client.append_archive(self.task_id, archive, filename=filename)


VideoTarget = NewDomain | LearnedDomain


def fail_if_missing(base: Path, videos: Sequence[VideoSpec]) -> None:
    """Exit with status 1 if video files below the folder ``base`` are missing, and list up to 20 of them."""
    missing = [video.uri for video in videos if not os.path.isfile(base / video.uri)]
    if missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        verb = "file does" if len(missing) == 1 else "files do"
        fail(
            f"{len(missing)} {verb} not exist in {base}: {', '.join(missing[:_MAX_LISTED])}{more}.",
            "Add the files, or remove their rows. Paths in a manifest are relative to the manifest's folder.",
        )


def send_videos(
    target: VideoTarget, base: Path, videos: Sequence[VideoSpec], in_place: bool, *, is_remote: bool
) -> TaskDetails:
    """Send videos as paths if the service reads the same files, otherwise as an archive."""
    local = [video for video in videos if not is_source_uri(video.uri)]
    fail_if_missing(base, local)
    files = {video.uri: (base / video.uri).resolve() for video in local}
    if in_place or not local or (not is_remote and _are_below_media_root(files.values())):
        placed = [
            video.model_copy(update={"uri": str(files[video.uri])}) if video.uri in files else video
            for video in videos
        ]
        try:
            return target.send(placed)
        except ValidationError as error:
            raise InvalidInput.from_pydantic(error.errors()) from None
    if len(local) < len(videos):
        fail(
            "The source mixes local files, which must be uploaded, with remote ones.",
            "Use two manifests, or --in-place if the service reads the same folder.",
        )
    size = sum(file.stat().st_size for file in files.values())
    _require_accepted(target.client, size)
    _require_space(size)
    with tempfile.TemporaryFile() as archive:
        try:
            pack_videos(archive, videos, files)
        except OSError as error:
            _refuse(size, f"can't be packed in {tempfile.gettempdir()}: {error}")
        archive.seek(0)
        with console.status("Sending the videos …"):
            return target.send_archive(archive, "videos.tar")


@contextmanager
def _sending(client: ServiceClient, archive: BinaryIO) -> Iterator[None]:
    """Check the size of an archive before it is sent in the ``with`` block, and explain a failed upload."""
    size = archive.seek(0, os.SEEK_END)
    archive.seek(0)
    _require_accepted(client, size)
    try:
        yield
    except TooLargeError as error:
        _refuse(size, f"are too large for the service or a proxy in front of it: {error.detail}")
    except UnreachableError as error:
        _refuse(size, f"were not received: the connection ended during the upload ({error.reason})")


def _require_accepted(client: ServiceClient, size: int) -> None:
    if client.is_remote and size > (limit := client.get_library().max_upload_bytes):
        _refuse(size, f"are more than the service accepts ({decimal(limit)}, CINESTRATA_MAX_UPLOAD_BYTES)")


def _require_space(size: int) -> None:
    folder = tempfile.gettempdir()
    most, free = resource.getrlimit(resource.RLIMIT_FSIZE)[0], shutil.disk_usage(folder).free
    free = free if most == resource.RLIM_INFINITY else min(free, most)
    if size > free:
        _refuse(size, f"don't fit into {folder}, where they are packed and {decimal(free)} are free")


def _refuse(size: int, reason: str) -> NoReturn:
    fail(
        f"The {decimal(size)} to upload {reason}.",
        "Copy the videos below the service's media root and use --in-place, or send them in parts, the later ones with "
        "--into.",
    )


def _are_below_media_root(files: Collection[Path]) -> bool:
    from service.core.settings import settings

    return all(file.is_relative_to(settings().media_root) for file in files)


def pack_videos(archive: BinaryIO, videos: Sequence[VideoSpec], files: dict[str, Path]) -> None:
    """Write the files and a manifest to a tar archive.

    Members are named after the files, because the reasons for rejection repeat these names. URIs in a manifest may
    point to any folder, so folders that an archive cannot contain are omitted, and equal names are numbered.
    """
    from service.tasks.uploads.uploaded_videos import storable_paths  # imports FAISS

    # Manifest names come first, so that no video takes one.
    stored = storable_paths([*MANIFEST_NAMES, *files])[len(MANIFEST_NAMES) :]
    names = dict(zip(files, stored, strict=True))
    lines = [
        video.model_copy(update={"uri": names[video.uri]}).model_dump_json(exclude_defaults=True)
        for video in videos
    ]
    # Two names for one file become two members, because the service refuses links in archives.
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar, progress_bar("files") as bar:
        manifest = "\n".join(lines).encode()
        entry = tarfile.TarInfo("manifest.jsonl")
        entry.size = len(manifest)
        tar.addfile(entry, BytesIO(manifest))
        for uri, file in bar.track(files.items(), description="Packing"):
            tar.add(file, arcname=names[uri], recursive=False)
