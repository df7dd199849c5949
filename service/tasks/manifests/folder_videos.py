"""Videos of a local folder: those of its manifest, or its files with their sidecars."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, NoReturn

from service.core.errors import InvalidInput
from service.core.schemas import VideoSpec
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES, TYPED_MANIFEST_NAMES, parse_manifest
from service.tasks.manifests.sidecar_captions import (
    VIDEO_SUFFIXES,
    add_caption_from_name,
    read_sidecars,
    subtitle_aliases,
)

__all__ = ["FolderVideos", "find_manifest", "list_folder_videos"]


class FolderVideos(NamedTuple):
    """Videos of a folder.

    Attributes:
        base: Folder that the URIs are relative to.
        videos: The videos; their files may be missing.
        has_manifest: Whether a manifest lists them.
    """

    base: Path
    videos: Sequence[VideoSpec]
    has_manifest: bool


def list_folder_videos(
    path: Path, encoding: str | None = None, captions_from_names: bool = False, root: Path | None = None
) -> FolderVideos:
    """List the videos of a manifest or a folder.

    Captions of a folder without a manifest are those of its sidecar files. A folder is listed completely or not at all.

    Args:
        path: Manifest or folder.
        encoding: Encoding of the manifest or the sidecar files; None is UTF-8.
        captions_from_names: Whether the file name becomes the caption of a video without captions.
        root: Folder, without links in its path, that the links of manifests and sidecar files must not leave; None:
            they may lead anywhere.

    Raises:
        InvalidInput: the manifest or a sidecar file is invalid or outside of ``root``, a name is not Unicode, or the
            folder has no videos.
        OSError: the folder, a folder in it, or a file cannot be read.
    """
    manifest = path if path.is_file() else find_manifest(path)
    if manifest is None:
        base, videos = path, _read_folder(path, encoding or "utf-8", root)
    else:
        with _open_inside(manifest, root) as stream:
            base, videos = manifest.parent, parse_manifest(stream, manifest.name, encoding or "utf-8")
    if captions_from_names:
        videos = list(map(add_caption_from_name, videos))
    return FolderVideos(base, videos, manifest is not None)


def find_manifest(folder: Path) -> Path | None:
    """The file of a folder that lists its videos and captions; None if there is none."""
    names = MANIFEST_NAMES + TYPED_MANIFEST_NAMES
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_folder(folder: Path, encoding: str, root: Path | None) -> list[VideoSpec]:
    names = sorted(_list_files(folder))
    videos = [
        name
        for name in names
        if PurePosixPath(name).suffix.lower() in VIDEO_SUFFIXES and (folder / name).is_file()
    ]
    if not videos:
        raise InvalidInput.at(
            str(folder),
            "The folder has no videos.",
            f"Expected a manifest, or files ending in {', '.join(sorted(VIDEO_SUFFIXES))}.",
        )
    for name in videos:
        if not name.isascii() and name != name.encode("utf-8", "replace").decode():
            raise InvalidInput.at(str(folder), f"The file name {name!r} is not Unicode.", "Rename the file.")
    aliases = subtitle_aliases(name for name in names if name.endswith((".srt", ".vtt")))

    def open_sidecar(name: str) -> BinaryIO | None:
        path = folder / name
        if not path.is_file() and name in aliases:
            path = folder / aliases[name]
        return _open_inside(path, root) if path.is_file() else None

    return [read_sidecars(name, open_sidecar, encoding) for name in videos]


def _list_files(folder: Path) -> Iterator[str]:
    """Yield the paths of all files relative to a folder; links to folders are not followed.

    ``Path.rglob`` omits folders that cannot be read, whose videos would look as if they had been deleted.
    """
    for place, _, names in os.walk(folder, onerror=_raise):
        inside = Path(place).relative_to(folder)
        yield from ((inside / name).as_posix() for name in names)


def _raise(error: OSError) -> NoReturn:
    raise error


def _open_inside(path: Path, root: Path | None) -> BinaryIO:
    """Open a manifest or a sidecar file; raises InvalidInput if a link leads out of ``root``."""
    target = path.resolve()
    if root is not None and not target.is_relative_to(root):
        raise InvalidInput.at(
            path.name, "The file is a link that leads outside the media root.", "Copy the file there."
        )
    return target.open("rb")
