"""The differences between a source and its domain, and what they are found from.

A video is identified by its content. Each file that a domain follows has a row in the catalog (``SyncedFile``) with its
size, times, inode and digest, so a file is read only if one of them has changed. A file with another name or folder
keeps its video; equal files share one; new content at the same path is a new version of the same video.

A plan depends only on the source, the rows and the stored videos. A run may therefore be interrupted at any moment and
repeated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from cinestrata_schemas.syncs import StoredFile, SyncedFile
from cinestrata_schemas.tasks import TaskDetails, VideoSpec
from cinestrata_schemas.uri_redaction import redact_uri
from cinestrata_schemas.videos import Cue, VideoSummary
from service.tasks.ingestion_checks import normalize_transcript


@dataclass(frozen=True)
class SourceFile:
    """A video file in a source, wherever the source is.

    Attributes:
        video: Its entry; the URI is relative to the source.
        bytes: Size of the file.
        file_id: ``device:inode`` of a local file, or a digest of an object's version.
        modified, changed: Times of the content and of the inode, in nanoseconds since the epoch; None for an object.
        content: Computes the SHA-256 of the content; None for an object.
        token: What stands for the content of an object: a digest of its MD5, or of its version.
    """

    video: VideoSpec
    bytes: int
    file_id: str
    modified: int | None = None
    changed: int | None = None
    content: Callable[[], str] | None = None
    token: str = ""


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source.

    Attributes:
        source: The source, which is part of the key of each file.
        files: The files, with their videos' URIs relative to the source.
        left_out: Why files or folders cannot be used, by path relative to the source.
        uploaded: Paths of uploaded files, which are not part of the source.
        device_of: Finds the device of the folder that would contain a path; None if it is unknown.
        path_of: Finds the path of a video's URI; None if it is not in the source.
        signature_of: Finds size and time of what is at a path; None if there is nothing.
        place: Completes videos' URIs to the form that tasks use.
    """

    source: str
    files: list[SourceFile]
    left_out: dict[str, str]
    uploaded: Sequence[str] = ()
    device_of: Callable[[str], str | None] = lambda path: None
    path_of: Callable[[str], str | None] = lambda uri: None
    signature_of: Callable[[str], tuple[int, int] | None] = lambda path: (-1, -1)
    place: Callable[[Sequence[VideoSpec]], list[VideoSpec]] = list


@dataclass(frozen=True)
class FollowedDomain:
    """What the library knows of a domain.

    Attributes:
        videos: Its videos, also those in unpublished appends.
        files: The files that it follows, of all sources.
        published: IDs of the tasks whose videos searches find.
        abandoned: IDs of videos whose new version was in an append that failed.
        former: Earlier places of the source, which was moved.
    """

    videos: Sequence[VideoSummary] = ()
    files: Sequence[StoredFile] = ()
    published: Collection[str] = ()
    abandoned: Collection[str] = ()
    former: Collection[str] = ()


@dataclass
class SyncPlan:
    """The differences between a source and its domain.

    Attributes:
        new: Videos for files that the domain lacks.
        changed: Videos for new contents of its files.
        renamed: New path, relative to the source, by video ID.
        uploads: IDs of the renamed videos whose files were uploaded.
        recaptioned: New captions by video ID.
        transcripts: New transcript and the digest of the previous one in the source, by video ID.
        superseded: IDs of rejected videos whose file has another content or name now.
        vanished: IDs of videos that are in no file any more.
        followed: Number of accepted videos that the source brought.
        unchanged: Number of files that the domain already has.
        rejected: Why unchanged files were rejected before, by path.
        left_out: Why files cannot be used, by path; the domain keeps their existing videos.
        rows: What to remember of each file before its video is sent, by path.
        late_rows: What to remember once videos are sent and texts edited, so that an interrupted run repeats both.
        forgotten: Keys of files that no longer exist, and whose video has another file or is gone.
    """

    new: list[VideoSpec] = field(default_factory=list)
    changed: list[VideoSpec] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    uploads: set[str] = field(default_factory=set)
    recaptioned: dict[str, list[str]] = field(default_factory=dict)
    transcripts: dict[str, tuple[list[Cue], str | None]] = field(default_factory=dict)
    superseded: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    followed: int = 0
    unchanged: int = 0
    rejected: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    rows: dict[str, SyncedFile] = field(default_factory=dict)
    late_rows: dict[str, SyncedFile] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)

    @property
    def lost_most(self) -> bool:
        """Whether more than half of the videos vanished, as when a disk is not mounted."""
        return 2 * len(self.vanished) > self.followed

    def leave_out(self, find_problem: Callable[[VideoSpec], str | None]) -> None:
        """Leave out the new and changed videos that have a problem.

        Args:
            find_problem: Explains why a video cannot be sent; None if it can.
        """
        for videos in (self.new, self.changed):
            problems = {video.uri: problem for video in videos if (problem := find_problem(video))}
            videos[:] = [video for video in videos if video.uri not in problems]
            self.left_out |= problems
            for path in problems:
                self.rows.pop(path, None)
                self.late_rows.pop(path, None)
        for video, path in list(self.renamed.items()):
            if problem := find_problem(VideoSpec.model_construct(uri=path)):
                del self.renamed[video]
                self.left_out[path] = problem

    def left_out_lines(self, limit: int) -> list[tuple[str, str]]:
        """List the first files left out: printable path and reason."""
        return [(shown_path(path), self.left_out[path]) for path in sorted(self.left_out)[:limit]]


def file_key(source: str, path: str) -> str:
    """Digest a file's source and path, the key of its row."""
    # Names that are not Unicode have a digest, too, although they are left out.
    place = f"{source}\0{PurePosixPath(path).as_posix()}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(place, digest_size=16).hexdigest()


def shown_path(path: str) -> str:
    """Make a path printable, without credentials."""
    text = redact_uri(path).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def abandoned_appends(
    tasks: Iterable[TaskDetails], stored: Iterable[VideoSummary], files: Iterable[StoredFile]
) -> list[str]:
    """Find failed or cancelled appends with synced videos only; once deleted, their videos can be sent again."""
    followed = {row.video_id for row in files}
    ended = {task.id for task in tasks if task.into is not None and task.state in ("failed", "cancelled")}
    by_append: dict[str, list[VideoSummary]] = {}
    for video in stored:
        if video.task_id in ended:
            by_append.setdefault(video.task_id, []).append(video)
    return [
        append
        for append, videos in by_append.items()
        if all(video.id in followed or video.replaces in followed for video in videos)
    ]


def relearned_domains(tasks: Collection[TaskDetails], domain: TaskDetails) -> list[TaskDetails]:
    """Find the ready domains that took over the domain's appended videos; return it and them by arrival."""
    found = [domain]
    for task in sorted(tasks, key=lambda task: task.position):
        if task.state == "ready" and any(task.relearns == known.id for known in found):
            found.append(task)
    return found


def transcript_digest(cues: Sequence[Cue]) -> str | None:
    """Digest a transcript; None for an empty one."""
    text = repr(normalize_transcript(cues)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest() if cues else None
