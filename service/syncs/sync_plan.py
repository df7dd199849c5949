"""Plan a sync: find the differences between a source and its domain.

A synced video's ID contains digests of the domain, the file's path and its content:
``<name>-<domain>-<path>-<content>``. The next run compares the files with these IDs, so it needs no state of its own
and may be interrupted at any moment and repeated. Since IDs are unique, two concurrent runs cannot add a file twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType

from cinestrata_schemas.tasks import TaskDetails, VideoSpec
from cinestrata_schemas.uri_redaction import redact_uri
from cinestrata_schemas.videos import VideoSummary
from service.core.domain_names import name_key
from service.tasks.ingestion_checks import normalize_caption

_CLOCK_TOLERANCE = 2.0  # seconds: for coarse file system timestamps and clock skew
_SYNCED_ID = re.compile(r"^.*-(?P<path>[0-9a-f]{16})-(?P<content>[0-9a-f]{8})$")


@dataclass(frozen=True)
class SourceFile:
    """A video file in a source, wherever the source is.

    Attributes:
        video: Its entry; the URI is relative to the source.
        bytes: Size of the file.
        modified: When it was last modified, in seconds since the epoch.
        content: Computes a hexadecimal digest of its content, at least eight characters.
    """

    video: VideoSpec
    bytes: int
    modified: float
    content: Callable[[], str]


@dataclass
class SyncPlan:
    """The differences between a source and its domain.

    Attributes:
        new: Videos for files that the domain lacks.
        changed: Videos for files whose content differs from the domain's.
        recaptioned: New captions by video ID, for unchanged files.
        outdated: IDs of videos whose file has a newer version in the domain.
        vanished: IDs of videos whose file is gone.
        unchanged: Number of files that the domain already has.
        rejected: Why unchanged files were rejected before, by URI.
        left_out: Why files cannot be used, by path; the domain keeps their existing videos.
    """

    new: list[VideoSpec] = field(default_factory=list)
    changed: list[VideoSpec] = field(default_factory=list)
    recaptioned: dict[str, list[str]] = field(default_factory=dict)
    outdated: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    unchanged: int = 0
    rejected: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def leave_out(self, find_problem: Callable[[VideoSpec], str | None]) -> None:
        """Leave out the new and changed videos that have a problem.

        Args:
            find_problem: Explains why a video cannot be sent; None if it can.
        """
        for videos in (self.new, self.changed):
            problems = {video.uri: problem for video in videos if (problem := find_problem(video))}
            videos[:] = [video for video in videos if video.uri not in problems]
            self.left_out |= problems

    def left_out_lines(self, limit: int) -> list[tuple[str, str]]:
        """List the first files left out: printable path and reason."""
        return [(shown_path(path), self.left_out[path]) for path in sorted(self.left_out)[:limit]]


def plan_sync(
    files: Sequence[SourceFile],
    stored: Iterable[VideoSummary],
    report_alive: Callable[[], object] = lambda: None,
    domain: str = "",
    left_out: Mapping[str, str] = MappingProxyType({}),
    uploaded: Iterable[str] = (),
) -> SyncPlan:
    """Compare files with a domain's videos.

    A file is unchanged if it has the stored video's size and was not modified since the video was added; otherwise, its
    content decides. A file with the same content as a video that another command added is also unchanged, and the plan
    never lists that video as vanished. A source's captions replace the domain's; where the source has none, the
    domain's stay.

    Args:
        report_alive: Called after each file.
        domain: Name of the domain, which keeps the IDs of equal files in two domains apart.
        left_out: Why the listing left out files, by path. They have not vanished. If it left out a folder, whose path
            ends with a slash, no video counts as vanished.
        uploaded: Paths of uploaded files, which are not part of the source. Videos that a manifest made from them stay
            as they are.
    """
    versions: dict[str, list[VideoSummary]] = {}
    others: dict[str, VideoSummary] = {}  # by content
    for version in stored:
        if _SYNCED_ID.match(version.id):
            versions.setdefault(_key(version.id), []).append(version)
        elif version.status == "accepted" and version.content_hash:
            others[version.content_hash] = version
    plan = SyncPlan(left_out=dict(left_out))
    seen = set(map(path_digest, [*left_out, *uploaded]))
    for file in files:
        key = path_digest(file.video.uri)
        seen.add(key)
        try:
            _compare(plan, file, key, versions.get(key, []), others, domain)
        except OSError as error:  # while its content was read
            plan.left_out[file.video.uri] = f"The file cannot be read ({error.strerror})."
        report_alive()
    is_complete = not any(path.endswith("/") for path in left_out)
    plan.vanished = [
        video.id
        for key, videos in versions.items()
        if is_complete and key not in seen
        for video in videos
        if video.status == "accepted"
    ]
    return plan


def _compare(
    plan: SyncPlan,
    file: SourceFile,
    key: str,
    stored: Sequence[VideoSummary],
    others: Mapping[str, VideoSummary],
    domain: str,
) -> None:
    """Add a file to the plan.

    Args:
        key: Digest of the file's path.
        stored: Stored versions of its path.
        others: Videos that another command added, by content hash.
    """
    current = _find_current(file, stored)
    if current is None:
        digest = file.content()
        content = digest[:8]
        current = next((version for version in stored if version.id.endswith(f"-{content}")), None)
        if digest in others and (current is None or current.status == "rejected"):
            current = others[digest]
        if current is None:
            video = file.video.model_copy(update={"id": _video_id(file, domain, key, content)})
            (plan.changed if stored else plan.new).append(video)
            return
    if current.status == "rejected":
        plan.rejected[file.video.uri] = current.reason or ""
        return
    plan.unchanged += 1
    if current.status == "accepted":
        plan.outdated += [v.id for v in stored if v.id != current.id and v.status != "pending"]
        captions = list(dict.fromkeys(map(normalize_caption, file.video.captions)))
        if captions and captions != list(dict.fromkeys(current.captions)):
            plan.recaptioned[current.id] = captions


def path_digest(uri: str) -> str:
    """Digest a path relative to the source, as in the IDs of synced videos."""
    # Names that are not Unicode have a digest, too, although they are left out.
    path = PurePosixPath(uri).as_posix().encode("utf-8", "surrogatepass")
    return hashlib.blake2b(path, digest_size=8).hexdigest()


def shown_path(path: str) -> str:
    """Make a path printable, without credentials."""
    text = redact_uri(path).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def abandoned_appends(tasks: Iterable[TaskDetails], stored: Iterable[VideoSummary]) -> list[str]:
    """Find failed or cancelled appends with synced videos only; once deleted, their videos can be sent again."""
    ended = {task.id for task in tasks if task.into is not None and task.state in ("failed", "cancelled")}
    by_append: dict[str, list[VideoSummary]] = {}
    for video in stored:
        if video.task_id in ended:
            by_append.setdefault(video.task_id, []).append(video)
    return [
        append for append, videos in by_append.items() if all(_SYNCED_ID.match(video.id) for video in videos)
    ]


def relearned_domains(tasks: Collection[TaskDetails], domain: TaskDetails) -> list[TaskDetails]:
    """Find the ready domains that took over the domain's appended videos; return it and them by arrival."""
    found = [domain]
    for task in sorted(tasks, key=lambda task: task.position):
        if task.state == "ready" and any(task.relearns == known.id for known in found):
            found.append(task)
    return found


def _find_current(file: SourceFile, versions: Sequence[VideoSummary]) -> VideoSummary | None:
    """Find the version that is the file by size and time; None if contents must be compared."""
    for version in reversed(versions):
        added = version.added_at.timestamp()
        if version.bytes == file.bytes and file.modified < added - _CLOCK_TOLERANCE:
            return version
    return None


def _video_id(file: SourceFile, domain: str, key: str, content: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._]+", "_", PurePosixPath(file.video.uri).stem)[:64] or "video"
    owner = hashlib.blake2b(name_key(domain).encode(), digest_size=4).hexdigest()
    return f"{stem}-{owner}-{key}-{content}"


def _key(video_id: str) -> str:
    match = _SYNCED_ID.match(video_id)
    return match["path"] if match else ""
