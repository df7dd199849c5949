"""``cinestrata sync``: brings a domain up to date with a folder of videos.

The id of each video that the command adds contains a digest of the file's path and a digest of its content:
``<name>-<path>-<content>``. The next run compares the files with these ids, so that it needs no memory of its own, and
may be interrupted at any moment and repeated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

import typer

from cli.commands.ingest_command import default_name, read_videos
from cli.commands.task_commands import follow
from cli.commands.video_sending import LearnedDomain, NewDomain, fail_if_missing, send_videos
from cli.connection import connect
from cli.console import console, fail
from media import content_hash
from service.core.schemas import VideoSpec, VideoSummary

__all__ = ["SourceFile", "SyncPlan", "path_digest", "plan_sync", "run_sync"]

MAX_APPENDED = 1000  # videos per append, so that an interrupted sync loses little
_CLOCK_TOLERANCE = 2.0  # seconds: coarse timestamps of file systems, and clocks of two machines
_SYNCED_ID = re.compile(r"^.*-(?P<path>[0-9a-f]{16})-(?P<content>[0-9a-f]{8})$")


@dataclass(frozen=True)
class SourceFile:
    """A video file of the source.

    Attributes:
        path: The file.
        video: Its entry; the URI is relative to the source.
    """

    path: Path
    video: VideoSpec


@dataclass
class SyncPlan:
    """Differences between a source and its domain.

    Attributes:
        new: Videos of files that the domain does not have.
        changed: Videos of files whose content differs from the domain's.
        outdated: Ids of videos whose file has a newer version in the domain.
        vanished: Ids of videos whose file is gone.
        unchanged: Number of files that the domain has.
        rejected: Reasons of files that were rejected before and have not changed, by URI.
    """

    new: list[VideoSpec] = field(default_factory=list)
    changed: list[VideoSpec] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    unchanged: int = 0
    rejected: dict[str, str] = field(default_factory=dict)


def run_sync(
    source: Path,
    name: str | None,
    vanished: Literal["keep", "delete"],
    dry_run: bool,
    in_place: bool,
    encoding: str | None,
    captions_from_names: bool,
    url: str | None,
    data: Path | None,
) -> None:
    """Append new files of a folder to a domain, replace changed ones, and report or delete vanished ones.

    The domain is created if it does not exist. Exits with status 1 if a task or an append does not become ready.

    Args:
        source: Folder of videos, or its manifest.
        name: Name of the domain; None derives it from the path.
        vanished: Whether videos whose file is gone are kept or deleted.
        dry_run: Whether to print the plan only.
        in_place: Whether to send paths instead of file contents.
        encoding: Encoding of the manifest or the sidecar files; None is UTF-8.
        captions_from_names: Whether the file name becomes the caption of a video without captions.
        url: URL of a running service; None works on the data folder in this process.
        data: Data folder; None takes it from the environment.
    """
    if not source.exists():
        fail(f"{source} does not exist.", "Nothing was changed. Name a folder of videos, or its manifest.")
    name = name or default_name(source)
    base, listed = read_videos(source, encoding, captions_from_names)
    files = [SourceFile(base / video.uri, video) for video in listed]
    fail_if_missing(base, listed, "Nothing was changed.")
    if named := next((video.id for video in listed if video.id is not None), None):
        fail(
            f"The manifest gives the id {named!r}, but sync derives ids from paths and contents.",
            "Nothing was changed. Omit the ids, or use `cinestrata ingest --into`.",
        )
    client = connect(url, data)
    domain = next((task for task in client.tasks() if task.name == name and task.into is None), None)
    plan = plan_sync(files, client.task_videos(domain.id) if domain else ())
    _print_plan(name, plan, vanished)
    if dry_run:
        return
    if domain is not None and domain.state != "ready" and (plan.new or plan.changed):
        fail(f"{name} is {domain.state}.", "Sync again once it is ready.")
    sent = [*plan.new, *plan.changed]
    for start in range(0, len(sent), MAX_APPENDED):
        videos = sent[start : start + MAX_APPENDED]
        target = LearnedDomain(client, domain.id) if domain else NewDomain(client, name, None, None)
        task = send_videos(target, base, videos, in_place, is_remote=url is not None)
        domain = domain or task
        if follow(client, [task.id])[0].state != "ready":
            raise typer.Exit(1)
    if sent and domain is not None:
        # Former versions are deleted last, so that an interrupted sync never leaves a file without a searchable video.
        plan = plan_sync(files, client.task_videos(domain.id))
    if gone := [*plan.outdated, *(plan.vanished if vanished == "delete" else ())]:
        client.delete(gone)


def plan_sync(files: Sequence[SourceFile], stored: Iterable[VideoSummary]) -> SyncPlan:
    """Compare files with the videos of a domain; videos that another command added are ignored.

    A file is unchanged if its size is that of the stored video and it was not modified since the video was added;
    otherwise its content decides.

    Args:
        files: Files of the source.
        stored: Videos of the domain.
    """
    versions: dict[str, list[VideoSummary]] = {}
    for version in stored:
        if _SYNCED_ID.match(version.id):
            versions.setdefault(_key(version.id), []).append(version)
    plan = SyncPlan()
    seen: set[str] = set()
    for file in files:
        key = path_digest(file.video.uri)
        seen.add(key)
        former = versions.get(key, [])
        current = _find_current(file, former)
        if current is None:
            video = file.video.model_copy(update={"id": _video_id(file, key)})
            known = next((version for version in former if version.id == video.id), None)
            if known is None:
                (plan.changed if former else plan.new).append(video)
                continue
            current = known
        if current.status == "rejected":
            plan.rejected[file.video.uri] = current.reason or ""
            continue
        plan.unchanged += 1
        if current.status == "accepted":
            plan.outdated += [v.id for v in former if v.id != current.id and v.status != "pending"]
    plan.vanished = [
        video.id
        for key, videos in versions.items()
        if key not in seen
        for video in videos
        if video.status == "accepted"
    ]
    return plan


def path_digest(uri: str) -> str:
    """Digest of a path relative to the source, as in the ids of synced videos."""
    return hashlib.blake2b(PurePosixPath(uri).as_posix().encode(), digest_size=8).hexdigest()


def _find_current(file: SourceFile, versions: Sequence[VideoSummary]) -> VideoSummary | None:
    """The version that is the file according to size and time; None if its content must be compared."""
    stat = file.path.stat()
    for version in reversed(versions):
        added = version.added_at.timestamp() if version.added_at else 0.0
        if version.bytes == stat.st_size and stat.st_mtime < added - _CLOCK_TOLERANCE:
            return version
    return None


def _video_id(file: SourceFile, key: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._]+", "_", PurePosixPath(file.video.uri).stem)[:64] or "video"
    return f"{stem}-{key}-{content_hash(file.path)[:8]}"


def _key(video_id: str) -> str:
    match = _SYNCED_ID.match(video_id)
    return match["path"] if match else ""


def _print_plan(name: str, plan: SyncPlan, vanished: Literal["keep", "delete"]) -> None:
    console.print(
        f"{name}: {len(plan.new)} new, {len(plan.changed)} changed, {plan.unchanged} unchanged, "
        f"{len(plan.vanished)} vanished ({'kept' if vanished == 'keep' else 'deleted'})"
    )
    for uri, reason in plan.rejected.items():
        console.print(f"  rejected before: {uri}: {reason}")
