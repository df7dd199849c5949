"""``cinestrata ingest``: a manifest, a folder or an archive of videos becomes a task."""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import typer
from pydantic import ValidationError

from cli.commands.task_commands import follow
from cli.console import console, fail, progress_bar
from cli.service_client import ServiceClient, TaskSettings, connect
from service.core.errors import InvalidInput
from service.core.schemas import TaskDetails, TaskSpec, VideoSpec
from service.core.settings import settings as configured
from service.tasks.archives import parse_manifest

__all__ = ["run_ingest"]

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
_MANIFESTS = ("manifest.jsonl", "manifest.csv")
_VIDEOS = frozenset(
    f".{kind}"
    for kind in ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "mts", "wmv", "flv", "3gp")
)


def run_ingest(
    path: Path,
    name: str | None,
    method: str | None,
    chosen: Sequence[str],
    wait: bool,
    in_place: bool,
    url: str | None,
    data: Path | None,
) -> None:
    """Post the task, and follow it unless told otherwise. Leaves with status 1 when it does not become ready.

    Args:
        chosen: settings of the method, each as ``name=value``.
        in_place: the service sees the files where they are; send their paths instead of their bytes.
    """
    if not path.exists():
        fail(
            f"{path} does not exist.", "Name a manifest (.jsonl or .csv), a folder of videos, or an archive."
        )
    name, settings = name or _name(path), _settings(chosen)
    client = connect(url, data)
    if path.name.endswith(_ARCHIVES):
        with path.open("rb") as archive, console.status("Sending the archive …"):
            task = client.create_task_from_archive(archive, path.name, name, method, settings)
    else:
        task = _post_files(client, path, name, method, settings, in_place, remote=url is not None)
    console.print(f"{task.name}: {task.id}, {task.counts.videos} videos")
    if wait and follow(client, [task.id])[0].state != "ready":
        raise typer.Exit(1)


def _post_files(
    client: ServiceClient,
    path: Path,
    name: str,
    method: str | None,
    settings: TaskSettings,
    in_place: bool,
    *,
    remote: bool,
) -> TaskDetails:
    base, videos = _read(path)
    files = {video.uri: (base / video.uri).resolve() for video in videos}
    for uri, file in files.items():
        if not file.is_file():
            fail(
                f"{uri}: there is no such file in {base}.",
                "Paths in a manifest start at the manifest's own folder.",
            )
    inside = not remote and all(file.is_relative_to(configured().media_root) for file in files.values())
    if in_place or inside:
        placed = [video.model_copy(update={"uri": str(files[video.uri])}) for video in videos]
        try:
            spec = TaskSpec(name=name, method=method, settings=settings, videos=placed)
        except ValidationError as error:
            raise InvalidInput.from_pydantic(error.errors()) from None
        return client.create_task(spec)
    with tempfile.TemporaryFile() as archive:
        _pack(archive, videos, files)
        archive.seek(0)
        with console.status("Sending the videos …"):
            return client.create_task_from_archive(archive, f"{name}.tar", name, method, settings)


def _settings(chosen: Sequence[str]) -> TaskSettings:
    """``["epochs=5", "name=x"]`` as an object; values are read as JSON where they are any."""
    settings: dict[str, bool | int | float | str | None] = {}
    for assignment in chosen:
        key, equals, value = assignment.partition("=")
        if not key or not equals:
            fail(f"--set {assignment}: this is not name=value.", "Write it as in: --set epochs=5")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings or None


def _read(path: Path) -> tuple[Path, Sequence[VideoSpec]]:
    """The folder that URIs start at, and the videos."""
    if path.is_file():
        return path.parent, parse_manifest(path.read_bytes(), path.name)
    for manifest in (path / name for name in _MANIFESTS):
        if manifest.exists():
            return _read(manifest)
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in _VIDEOS and file.is_file())
    if not found:
        fail(
            f"There are no videos in {path}.",
            f"Looked for a manifest and for files ending in {', '.join(sorted(_VIDEOS))}.",
        )
    console.print("No manifest: the videos come without captions and are indexed without learning.")
    return path, [VideoSpec(uri=file.relative_to(path).as_posix()) for file in found]


def _pack(archive: BinaryIO, videos: Sequence[VideoSpec], files: dict[str, Path]) -> None:
    """A tar of the files under names of our own (a manifest may point anywhere), and a manifest that fits."""
    names = {uri: f"{number:06d}{PurePosixPath(uri).suffix}" for number, uri in enumerate(files)}
    lines = [
        video.model_copy(update={"uri": names[video.uri]}).model_dump_json(exclude_none=True)
        for video in videos
    ]
    # Two names of one file come as two files: the service takes no links.
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar, progress_bar("files") as bar:
        manifest = "\n".join(lines).encode()
        entry = tarfile.TarInfo("manifest.jsonl")
        entry.size = len(manifest)
        tar.addfile(entry, BytesIO(manifest))
        for uri, file in bar.track(files.items(), description="Packing"):
            tar.add(file, arcname=names[uri], recursive=False)


def _name(path: Path) -> str:
    named = path.resolve()
    stem = named.parent.name if named.name in _MANIFESTS else named.name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9 ._-]+", "-", stem)[:80] or "videos"
