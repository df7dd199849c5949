"""``cinestrata ingest``: creates a task, or appends to a domain, from a manifest, a folder or an archive of videos."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import typer

from cli.commands.task_commands import find_task, follow
from cli.commands.video_sending import LearnedDomain, NewDomain, VideoTarget, send_videos
from cli.connection import connect
from cli.console import console, fail
from cli.service_client import MethodSettings
from service.core.schemas import VideoSpec
from service.tasks.manifests.folder_videos import list_folder_videos
from service.tasks.manifests.manifest_parser import MANIFEST_NAMES, TYPED_MANIFEST_NAMES

__all__ = ["default_name", "parse_settings", "read_videos", "run_ingest"]

_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_MANIFEST_NAMES = MANIFEST_NAMES + TYPED_MANIFEST_NAMES


def run_ingest(
    path: Path,
    name: str | None,
    into: str | None,
    method: str | None,
    assignments: Sequence[str],
    wait: bool,
    in_place: bool,
    encoding: str | None,
    captions_from_names: bool,
    url: str | None,
    data: Path | None,
) -> None:
    """Create a task or an append and follow its progress. Exits with status 1 if it does not become ready.

    Args:
        path: Manifest, folder of videos, or archive with a manifest.
        name: Name of the domain; None derives it from the path.
        into: Name or id of the task whose domain receives the videos; None creates a domain.
        method: Learning method; None takes the service's default.
        assignments: Settings of the method as ``name=value``.
        wait: Whether to follow the task until it reaches a final state.
        in_place: Whether to send paths instead of file contents, for a service that reads the same files.
        encoding: Encoding of the manifest or the sidecar files; None is UTF-8.
        captions_from_names: Whether the file name becomes the caption of a video without captions.
        url: URL of a running service; None works on the data folder in this process.
        data: Data folder; None takes it from the environment.
    """
    if not path.exists():
        fail(
            f"{path} does not exist.",
            "Name a manifest (JSONL, CSV, TSV, Parquet or Excel), a folder of videos, or an archive.",
        )
    if into and (name or method or assignments):
        fail(
            "--into cannot be combined with --name, --method or --set.",
            "The domain keeps its name and its release.",
        )
    is_archive = path.is_file() and path.name.endswith(_ARCHIVE_SUFFIXES)
    if is_archive and (encoding or captions_from_names):
        fail(
            "--encoding and --captions-from-names cannot be combined with an archive.",
            "Unpack it, and name the folder.",
        )
    settings = parse_settings(assignments)
    client = connect(url, data)
    target: VideoTarget
    if into:
        target = LearnedDomain(client, find_task(client, into).id)
    else:
        target = NewDomain(client, name or default_name(path), method, settings)
    if is_archive:
        with path.open("rb") as archive, console.status("Sending the archive …"):
            task = target.send_archive(archive, path.name)
    else:
        base, videos = read_videos(path, encoding, captions_from_names)
        task = send_videos(target, base, videos, in_place, is_remote=url is not None)
    console.print(f"{task.name}: {task.id}, {task.counts.videos} videos")
    if wait and follow(client, [task.id])[0].state != "ready":
        raise typer.Exit(1)


def parse_settings(assignments: Sequence[str]) -> MethodSettings:
    """Settings from assignments such as ``epochs=5``; values are parsed as JSON if possible."""
    settings: dict[str, bool | int | float | str | None] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not key or not equals:
            fail(f"--set {assignment} is not an assignment.", "Write name=value, for example: --set epochs=5")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings or None


def read_videos(
    path: Path, encoding: str | None = None, captions_from_names: bool = False
) -> tuple[Path, Sequence[VideoSpec]]:
    """The videos of a manifest or a folder, with the folder that their URIs are relative to.

    Captions of a folder without a manifest are those of its sidecar files. Exits with status 1 if the folder has no
    videos.

    Args:
        path: Manifest or folder.
        encoding: Encoding of the manifest or the sidecar files; None is UTF-8.
        captions_from_names: Whether the file name becomes the caption of a video without captions.

    Raises:
        InvalidInput: the manifest or a sidecar file is invalid.
    """
    base, videos, has_manifest = list_folder_videos(path, encoding, captions_from_names)
    if not has_manifest:
        captioned = sum(bool(video.captions) for video in videos)
        console.print(
            f"No manifest: {captioned} of {len(videos)} videos have captions of their own files."
            if captioned
            else "No manifest: the videos have no captions and are indexed without training."
        )
    return base, videos


def default_name(path: Path) -> str:
    """The name of a domain, derived from the name of its file or folder."""
    resolved = path.resolve()
    stem = resolved.parent.name if resolved.name in _MANIFEST_NAMES else resolved.name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9 ._-]+", "-", stem)[:80] or "videos"
