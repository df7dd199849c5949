"""Videos of a local folder: those of its manifest, or its files with their sidecars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

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
    path: Path, encoding: str | None = None, captions_from_names: bool = False
) -> FolderVideos:
    """List the videos of a manifest or a folder.

    Captions of a folder without a manifest are those of its sidecar files.

    Args:
        path: Manifest or folder.
        encoding: Encoding of the manifest or the sidecar files; None is UTF-8.
        captions_from_names: Whether the file name becomes the caption of a video without captions.

    Raises:
        InvalidInput: the manifest or a sidecar file is invalid, or the folder has no videos.
        OSError: the folder or a file cannot be read.
    """
    manifest = path if path.is_file() else find_manifest(path)
    if manifest is None:
        base, videos = path, _read_folder(path, encoding or "utf-8")
    else:
        with manifest.open("rb") as stream:
            base, videos = manifest.parent, parse_manifest(stream, manifest.name, encoding or "utf-8")
    if captions_from_names:
        videos = list(map(add_caption_from_name, videos))
    return FolderVideos(base, videos, manifest is not None)


def find_manifest(folder: Path) -> Path | None:
    """The file of a folder that lists its videos and captions; None if there is none."""
    names = MANIFEST_NAMES + TYPED_MANIFEST_NAMES
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_folder(folder: Path, encoding: str) -> list[VideoSpec]:
    files = sorted(
        file for file in folder.rglob("*") if file.suffix.lower() in VIDEO_SUFFIXES and file.is_file()
    )
    if not files:
        raise InvalidInput.at(
            str(folder),
            "The folder has no videos.",
            f"Expected a manifest, or files ending in {', '.join(sorted(VIDEO_SUFFIXES))}.",
        )

    aliases = subtitle_aliases(
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*.*.*")
        if file.suffix in (".srt", ".vtt")
    )

    def open_sidecar(name: str) -> BinaryIO | None:
        path = folder / name
        if not path.is_file() and name in aliases:
            path = folder / aliases[name]
        return path.open("rb") if path.is_file() else None

    return [read_sidecars(file.relative_to(folder).as_posix(), open_sidecar, encoding) for file in files]
