"""Sources that commands read: local folders and manifests, and remote ones through their listing."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from rich.filesize import decimal

from cinestrata_client import TooLargeError, UnreachableError
from cinestrata_schemas.domain_names import MAX_NAME_CHARS, name_problem, normalize_name
from cinestrata_schemas.tasks import AppendSpec, TaskDetails, TaskSpec, VideoSpec
from cinestrata_schemas.uris import is_source_uri
from cli.console import console, error_console, fail, progress_bar
from cli.service_client import ServiceClient
from media import MediaError
from media.sources.media_source import SourceUri
from media.video_limits import VIDEO_SUFFIXES
from service.core.errors import InvalidInput
from service.core.settings import settings
from service.syncs.source_listing import local_files, remote_files
from service.syncs.sync_plan import SourceFiles, shown_path
from service.tasks.ingestion_checks import make_spec
from service.tasks.manifests.caption_tables import MANIFEST_NAMES, TABLE_SUFFIXES, TYPED_MANIFEST_NAMES
from service.tasks.manifests.folder_videos import FolderVideos, VideoListing, list_folder_videos
from service.tasks.manifests.video_tables import TYPED_SUFFIXES

if TYPE_CHECKING:
    from service.tasks.manifests.folder_videos import RemoteVideos


_MAX_LISTED = 20


@dataclass(frozen=True)
class VideoTarget:
    """Where videos are sent."""

    client: ServiceClient
    # ID of the learned domain that the videos are appended to; None: they become a new domain
    task_id: str | None = None
    # name of a new domain, and other fields of its :class:`TaskSpec`
    fields: Mapping[str, Any] = field(default_factory=dict)

    def send(self, videos: list[VideoSpec]) -> TaskDetails:
        """Send paths of videos that the service can read; raise InvalidInput."""
        if self.task_id is not None:
            return self.client.append_videos(self.task_id, make_spec(AppendSpec, videos=videos))
        return self.client.create_task(make_spec(TaskSpec, **self.fields, videos=videos))

    def send_archive(self, archive: BinaryIO, filename: str) -> TaskDetails:
        """Send an archive of videos with a manifest."""
        with _sending(self.client, archive):
            if self.task_id is not None:
                return self.client.append_archive(self.task_id, archive, filename=filename)
            return self.client.create_task_from_archive(archive, filename=filename, **self.fields)


def fail_if_missing(base: Path, videos: Sequence[VideoSpec]) -> None:
    """Exit with status 1 if video files below the folder ``base`` are missing, and list up to 20 of them."""
    missing = [video.uri for video in videos if not os.path.isfile(base / video.uri)]
    if missing:
        verb = "file does" if len(missing) == 1 else "files do"
        fail(
            f"{len(missing)} {verb} not exist in {base}: {_name_some(missing, _MAX_LISTED)}.",
            "Add the files, or remove their rows. Paths in a manifest are relative to the manifest's folder.",
        )


def send_videos(
    target: VideoTarget, base: Path, videos: Sequence[VideoSpec], in_place: bool, *, is_remote: bool
) -> TaskDetails:
    """Send videos as paths if the service reads the same files, otherwise as an archive."""
    local = [video for video in videos if not is_source_uri(video.uri)]
    fail_if_missing(base, local)
    files = {video.uri: (base / video.uri).resolve() for video in local}
    media_root = settings().media_root
    is_readable = not is_remote and all(file.is_relative_to(media_root) for file in files.values())
    if in_place or not local or is_readable:
        placed = [
            video.model_copy(update={"uri": str(files[video.uri])}) if video.uri in files else video
            for video in videos
        ]
        return target.send(placed)
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
    limit, free = resource.getrlimit(resource.RLIMIT_FSIZE)[0], shutil.disk_usage(folder).free
    free = free if limit == resource.RLIM_INFINITY else min(free, limit)
    if size > free:
        _refuse(size, f"don't fit into {folder}, where they are packed and {decimal(free)} are free")


def _refuse(size: int, reason: str) -> NoReturn:
    fail(
        f"The {decimal(size)} to upload {reason}.",
        "Copy the videos below the service's media root and use --in-place, or send them in parts, the later ones with "
        "--into.",
    )


def pack_videos(archive: BinaryIO, videos: Sequence[VideoSpec], files: dict[str, Path]) -> None:
    """Write the files and a manifest to a tar archive.

    Members are named after the files, because the reasons for rejection repeat these names. URIs in a manifest may
    point to any folder, so folders that an archive cannot contain are omitted, and equal names are numbered.
    """
    from service.tasks.uploaded_videos import storable_paths  # imports FAISS

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


_MAX_NAMED = 5
_MAX_LEFT_OUT = 20


@dataclass(frozen=True)
class _LocalSource:
    """A folder of this machine, or a manifest in it; URIs are relative to the folder."""

    listing: FolderVideos
    in_place: bool
    is_remote: bool

    def files(self) -> SourceFiles:
        """Return the files of the videos; raises InvalidInput if all are left out."""
        return replace(local_files(self.listing), place=self.place)

    def find_problem(self, video: VideoSpec) -> str | None:
        """Return why a video cannot be sent; None if no reason is known."""
        if not self.in_place or self.is_remote or is_source_uri(video.uri):
            return None
        is_inside = (self.listing.base / video.uri).resolve().is_relative_to(settings().media_root.resolve())
        return None if is_inside else "It is a link or a path that leads outside the media root."

    def place(self, videos: Sequence[VideoSpec]) -> list[VideoSpec]:
        """Complete the URIs of videos that the service reads in place."""
        files = ((video, (self.listing.base / video.uri).resolve()) for video in videos)
        return [video.model_copy(update={"uri": str(file)}) for video, file in files]

    def send(self, target: VideoTarget, videos: Sequence[VideoSpec]) -> TaskDetails:
        return send_videos(target, self.listing.base, videos, self.in_place, is_remote=self.is_remote)


@dataclass(frozen=True)
class _RemoteSource:
    """The listing of a web server or bucket, with the methods of :class:`_LocalSource`."""

    listing: RemoteVideos

    def files(self) -> SourceFiles:
        return remote_files(self.listing)

    def find_problem(self, video: VideoSpec) -> str | None:
        return None

    def place(self, videos: Sequence[VideoSpec]) -> list[VideoSpec]:
        return self.listing.place(videos)

    def send(self, target: VideoTarget, videos: Sequence[VideoSpec]) -> TaskDetails:
        return target.send(self.place(videos))


VideoSource = _LocalSource | _RemoteSource


def open_source(
    source: str | Path, encoding: str | None, captions_from_names: bool, in_place: bool, *, is_remote: bool
) -> VideoSource:
    """Read the videos in a folder or manifest. Exits with status 1 if a local source does not exist.

    This process lists a remote source, with the credentials from its environment. If the service is remote, its media
    root is unknown. Raises InvalidInput for a source that cannot be read, and SourceUnavailable.
    """
    if isinstance(source, str) and is_source_uri(source):
        # Imported here, because local folders need neither the HTTP nor the fsspec client.
        from service.storage.library_files import SourceReader
        from service.tasks.manifests.folder_videos import list_remote_videos

        with console.status("Listing the source …"):
            listing = list_remote_videos(source, SourceReader(False), encoding, captions_from_names)
        _report_captions(listing)
        return _RemoteSource(listing)
    path = Path(source)
    if not path.exists():
        fail(
            f"{path} does not exist.",
            "Nothing was changed. Give a manifest (JSONL, CSV or TSV), a folder or an archive.",
        )
    return _LocalSource(read_videos(path, encoding, captions_from_names), in_place, is_remote)


def read_videos(path: Path, encoding: str | None = None, captions_from_names: bool = False) -> FolderVideos:
    """List the videos of a folder or manifest, and print how many have captions; raises InvalidInput."""
    try:
        listing = list_folder_videos(path, encoding, captions_from_names)
    except OSError as error:
        fail(f"{error.filename} cannot be read: {error.strerror}.", "Let this user read it, or move it.")
    _report_captions(listing)
    return listing


def _report_captions(listing: VideoListing) -> None:
    videos = listing.videos
    captioned = sum(bool(video.captions) for video in videos)
    transcribed = sum(bool(video.transcript) for video in videos)
    counted = f"{captioned} of {len(videos)} videos have captions"
    if transcribed:
        counted += f", and {transcribed} a transcript"
    if listing.formats:
        tables = _name_some([f"{path} ({name})" for path, name in listing.formats.items()])
        text = f"Captions from {tables}: {counted}."
        if not captioned:
            text += (
                " They are indexed without training. A table needs captions in a column 'caption', "
                "'captions', 'text' or 'description'."
            )
    elif captioned or transcribed:
        text = f"No manifest: {counted}, from their own files."
    elif listing.left_out:  # a manifest may be there that cannot be read
        text = "No captions could be read."
    else:
        text = "No manifest: the videos have no captions, and are indexed without training."
    console.print(text, style=None if captioned else "yellow")
    _report_paths("no row in the caption tables and are included", listing.without_row, "video")
    _report_paths("no file in the folder and are left out", list(listing.missing), "row")
    _report_omitted(listing.omitted)
    for path, note in list(listing.notes.items())[:_MAX_NAMED]:
        console.print(f"{shown_path(path)} {note}.", style="yellow")
    if len(listing.notes) > _MAX_NAMED:
        console.print(f"{len(listing.notes) - _MAX_NAMED} more files are like these.", style="yellow")


def _report_paths(what: str, paths: Sequence[str], kind: str) -> None:
    if not paths:
        return
    counted = (
        f"1 {kind} has {what.replace('are', 'is')}"
        if len(paths) == 1
        else f"{len(paths)} {kind}s have {what}"
    )
    console.print(f"{counted}: {_name_some(paths)}.", style="yellow")


def _report_omitted(omitted: Mapping[str, str]) -> None:
    """Print a line for each reason why paths are not part of the folder."""
    for reason in dict.fromkeys(omitted.values()):
        paths = [shown_path(path) for path, why in omitted.items() if why == reason]
        kind = "file or folder is" if len(paths) == 1 else "files or folders are"
        console.print(f"{len(paths)} {reason} {kind} left out: {_name_some(paths)}.")


def _name_some(paths: Sequence[str], limit: int = _MAX_NAMED) -> str:
    more = f" and {len(paths) - limit} more" if len(paths) > limit else ""
    return f"{', '.join(paths[:limit])}{more}"


def print_left_out(reasons: Mapping[str, str]) -> None:
    """Print why files cannot be used, by path."""
    for path in sorted(reasons)[:_MAX_LEFT_OUT]:
        error_console.say(f"  left out: {shown_path(path)}: {reasons[path]}")
    if len(reasons) > _MAX_LEFT_OUT:
        error_console.print(f"  left out: {len(reasons) - _MAX_LEFT_OUT} more")


ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_FILE_ENDINGS = (*ARCHIVE_SUFFIXES, *TABLE_SUFFIXES, *TYPED_SUFFIXES, *VIDEO_SUFFIXES)
_MANIFEST_NAMES = (*MANIFEST_NAMES, *TYPED_MANIFEST_NAMES, "metadata.jsonl", "metadata.csv")


def default_name(source: str | Path) -> str:
    """Derive the name of a domain from its folder, file or URI, without known file endings; raises InvalidInput."""
    path: PurePath = Path(os.path.abspath(source))  # a link has its own name
    is_folder = Path(path).is_dir()
    if isinstance(source, str) and is_source_uri(source):
        try:
            uri = SourceUri.parse(source)
        except MediaError as error:
            raise InvalidInput.at("source", f"{error.reason}.") from error
        path = PurePosixPath(uri.host, *uri.segments)
    stem = path.name
    if not is_folder and path.name in _MANIFEST_NAMES:
        stem = path.parent.name
    elif not is_folder:
        ending = next((end for end in _FILE_ENDINGS if stem.lower().endswith(end)), "")
        stem = stem[: len(stem) - len(ending)]
    name = normalize_name("".join(c if name_problem(f"a{c}a") is None else "-" for c in normalize_name(stem)))
    name = re.sub("-{2,}", "-", name)[:MAX_NAME_CHARS].strip()
    return name if name_problem(name) is None else "videos"
