"""The differences between a source and its domain, what they are found from, and how they are applied.

A video is identified by its content. Each file that a domain follows has a row in the catalog (``SyncedFile``) with its
size, times, inode and digest, so a file is read only if one of them has changed. A file with another name or folder
keeps its video; equal files share one; new content at the same path is a new version of the same video.

A plan depends only on the source, the rows and the stored videos. A run may therefore be interrupted at any moment and
repeated. Workers apply it with the functions of the service, commands with a client (:class:`FollowedLibrary`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from cinestrata_schemas.syncs import FollowedSource, StoredFile, SyncedFile, SyncedFilesPatch
from cinestrata_schemas.tasks import TaskDetails, VideoSpec
from cinestrata_schemas.uris import is_source_uri, redact_uri
from cinestrata_schemas.videos import Cue, VideoDetails, VideoPatch, VideoSummary
from index.arrays import batches
from service.catalog.video_texts import GIVEN_SOURCES
from service.core.errors import NotFound
from service.tasks.ingestion_checks import normalize_transcript


@dataclass(frozen=True)
class SourceFile:
    """A video file in a source, wherever the source is."""

    video: VideoSpec  # the URI is relative to the source
    bytes: int
    file_id: str  # device:inode of a local file, or a digest of an object's version
    modified: int | None = None  # time of the content in ns since the epoch; None for an object
    changed: int | None = None  # the same of the inode
    content: Callable[[], str] | None = None  # computes the SHA-256 of the content; None for an object
    token: str = ""  # stands for the content of an object: a digest of its MD5, or of its version


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source."""

    source: str  # the source, which is part of the key of each file
    files: list[SourceFile]  # the files, with their videos' URIs relative to the source
    left_out: dict[str, str]  # why files or folders cannot be used, by path relative to the source
    uploaded: Sequence[str] = ()  # paths of uploaded files, which are not part of the source
    # finds the device of the folder that would contain a path; None if it is unknown
    device_of: Callable[[str], str | None] = lambda path: None
    # finds the path of a video's URI; None if it is not in the source
    path_of: Callable[[str], str | None] = lambda uri: None
    # finds size and time of what is at a path; None if there is nothing
    signature_of: Callable[[str], tuple[int, int] | None] = lambda path: (-1, -1)
    # completes videos' URIs to the form that tasks use
    place: Callable[[Sequence[VideoSpec]], list[VideoSpec]] = list


@dataclass(frozen=True)
class FollowedDomain:
    """What the library knows of a domain."""

    videos: Sequence[VideoSummary] = ()
    files: Sequence[StoredFile] = ()  # the files that it follows, of all sources
    published: Collection[str] = ()  # IDs of the tasks whose videos searches find
    abandoned: Collection[str] = ()  # IDs of videos whose new version was in an append that failed
    former: Collection[str] = ()  # earlier places of the source, which was moved


@dataclass
class SyncPlan:
    """The differences between a source and its domain."""

    new: list[VideoSpec] = field(default_factory=list)  # videos for files that the domain lacks
    changed: list[VideoSpec] = field(default_factory=list)  # videos for new contents of its files
    renamed: dict[str, str] = field(default_factory=dict)  # new path, relative to the source, by video ID
    uploads: set[str] = field(default_factory=set)  # IDs of the renamed videos whose files were uploaded
    recaptioned: dict[str, list[str]] = field(default_factory=dict)  # new captions by video ID
    # new transcript and the digest of the previous one in the source, by video ID
    transcripts: dict[str, tuple[list[Cue], str | None]] = field(default_factory=dict)
    # IDs of rejected videos whose file has another content or name now
    superseded: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)  # IDs of videos that are in no file any more
    followed: int = 0  # number of accepted videos that the source brought
    unchanged: int = 0  # number of files that the domain already has
    # why unchanged files were rejected before, by path
    rejected: dict[str, str] = field(default_factory=dict)
    # why files cannot be used, by path; the domain keeps their existing videos
    left_out: dict[str, str] = field(default_factory=dict)
    # what to remember of each file before its video is sent, by path
    rows: dict[str, SyncedFile] = field(default_factory=dict)
    # what to remember once videos are sent and texts edited, so that an interrupted run repeats both
    late_rows: dict[str, SyncedFile] = field(default_factory=dict)
    # keys of files that no longer exist, and whose video has another file or is gone
    forgotten: list[str] = field(default_factory=list)

    @property
    def lost_most(self) -> bool:
        """Whether more than half of the videos vanished, as when a disk is not mounted."""
        return 2 * len(self.vanished) > self.followed

    def leave_out(self, find_problem: Callable[[VideoSpec], str | None]) -> None:
        """Leave out the new and changed videos that have a problem."""
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

    def sent_by_domain(self, followed: FollowedDomain, newest: str) -> dict[str, list[VideoSpec]]:
        """Group the videos to send by domain: a new version goes to that of its video, others to the newest."""
        homes = {video.id: video.task_id for video in followed.videos}
        sent: dict[str, list[VideoSpec]] = {}
        for video in (*self.new, *self.changed):
            sent.setdefault(homes.get(video.replaces or "", newest), []).append(video)
        return sent

    def left_out_lines(self, limit: int) -> list[tuple[str, str]]:
        """List the first files left out: printable path and reason."""
        return [(shown_path(path), self.left_out[path]) for path in sorted(self.left_out)[:limit]]


def file_key(source: str, path: str) -> str:
    """Digest a file's source and path, the key of its row."""
    # Names that are not Unicode have a digest, too, although they are left out.
    location = f"{source}\0{PurePosixPath(path).as_posix()}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(location, digest_size=16).hexdigest()


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
    domains = [domain]
    for task in sorted(tasks, key=lambda task: task.position):
        if task.state == "ready" and any(task.relearns == relearned.id for relearned in domains):
            domains.append(task)
    return domains


def transcript_digest(cues: Sequence[Cue]) -> str | None:
    """Digest a transcript; None for an empty one."""
    text = repr([cue[:3] for cue in normalize_transcript(cues)]).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest() if cues else None


_BATCH = 1000  # files per call
_CONTENTS = 50  # per call


@dataclass(frozen=True)
class FollowedLibrary:
    """The operations of a library that a sync needs."""

    # lists the followed files of a domain, or those with certain contents
    list_files: Callable[[str | None, Sequence[str]], Iterable[StoredFile]]
    list_sources: Callable[[], list[FollowedSource]]  # lists the sources of all domains
    record_files: Callable[[SyncedFilesPatch], object]  # records what a sync saw
    get_video: Callable[[str], VideoDetails]
    edit_video: Callable[[str, VideoPatch], object]
    root: Path | None = None  # folder with all sources that this process may look into; None: any folder

    def find_former(self, source: SourceFiles, files: Iterable[StoredFile]) -> set[str]:
        """Find the earlier places of a source that was moved: folders that are gone and whose files are here now."""
        here = {(file.video.uri, file.bytes, file.modified) for file in source.files}
        sources = {row.source for row in files if (row.path, row.bytes, row.modified) in here}
        return {source for source in sources - {source.source} if self._is_gone(source)}

    def find_moved_source(self, source: SourceFiles) -> str | None:
        """Find the domain that follows a source from its earlier place; None if there is none."""
        for other in self.list_sources():
            if self._is_gone(other.source) and self.find_former(source, self.list_files(other.task_id, ())):
                return other.task_id
        return None

    def find_moved(self, source: str, contents: Collection[str]) -> dict[str, str]:
        """Find the videos whose files were moved here from other followed folders, by content."""
        wanted = list(contents)
        if not any(other.source != source for other in self.list_sources()):
            return {}
        rows: dict[str, list[StoredFile]] = {}
        for row in self._files_of(wanted):
            if row.video_id:
                rows.setdefault(row.video_id, []).append(row)
        moved: dict[str, str] = {}
        for video_id, files in rows.items():
            if any(self._may_exist(row) for row in files):
                continue
            with suppress(NotFound):
                video = self.get_video(video_id)
                if video.status == "accepted" and video.content_hash:
                    moved[video.content_hash] = video_id
        return moved

    def find_existing(self, source: str, plan: SyncPlan, domain: FollowedDomain) -> set[str]:
        """Find vanished videos whose files are back, or in another followed folder, whose next sync moves them."""
        lost = set(plan.vanished)
        rows = [row for row in domain.files if row.video_id in lost]
        back = {row.video_id or "" for row in rows if row.source == source and self._is_there(row)}
        return back | self.find_elsewhere(source, rows)

    def find_elsewhere(self, source: str, rows: Iterable[StoredFile]) -> set[str]:
        """Find the videos of rows whose files are now in another followed folder that has no such file yet."""
        contents = {row.sha256: row for row in rows if row.sha256 and row.modified is not None}
        for other in self._files_of(list(contents)):  # it has files of its own with some of the contents
            if other.source != source:
                contents.pop(other.sha256 or "", None)
        wanted = {(row.bytes, row.modified): row.video_id for row in contents.values()}
        matches: set[str] = set()
        folders = {other.source for other in self.list_sources()} if wanted else set()
        for folder in filter(self._is_readable, folders - {source}):
            for parent, _, names in os.walk(folder):
                for name in names:
                    with suppress(OSError):
                        status = os.stat(os.path.join(parent, name))
                        if video_id := wanted.get((status.st_size, status.st_mtime_ns)):
                            matches.add(video_id)
        return matches

    def record(self, task_id: str, source: SourceFiles, plan: SyncPlan, *, is_sent: bool = False) -> None:
        """Record the files of a plan, whose new videos and versions may have been sent, and rename videos."""
        if is_sent:
            for rows in batches(list(plan.late_rows.values()), _BATCH):
                self.record_files(SyncedFilesPatch(task_id=task_id, source=source.source, files=list(rows)))
            return
        in_place = {video: path for video, path in plan.renamed.items() if video not in plan.uploads}
        placed = source.place([VideoSpec.model_construct(uri=path) for path in in_place.values()])
        uris = plan.renamed | {video: spec.uri for video, spec in zip(in_place, placed, strict=True)}
        rows, videos = list(plan.rows.values()), list(uris)
        for start in range(0, max(len(rows), len(plan.forgotten), len(videos)), _BATCH):
            part = slice(start, start + _BATCH)
            self.record_files(
                SyncedFilesPatch(
                    task_id=task_id,
                    source=source.source,
                    files=rows[part],
                    forgotten=plan.forgotten[part],
                    renamed={video: uris[video] for video in videos[part]},
                )
            )

    def edit_texts(self, plan: SyncPlan, report_alive: Callable[[], object] = lambda: None) -> None:
        """Replace captions, and transcripts that nobody has edited."""
        for video, captions in plan.recaptioned.items():
            report_alive()
            with suppress(NotFound):  # deleted since the plan
                self.edit_video(video, VideoPatch(captions=captions))
        for video, (cues, previous) in plan.transcripts.items():
            report_alive()
            with suppress(NotFound):
                details = self.get_video(video)
                given = set(GIVEN_SOURCES) - {reading.source for reading in details.readings}
                if transcript_digest([c for c in details.transcript if c.source in given]) in (
                    None,
                    previous,
                ):
                    read = [cue for cue in details.transcript if cue.source not in GIVEN_SOURCES]
                    new = [cue.model_copy(update={"source": "subtitles"}) for cue in cues]
                    self.edit_video(video, VideoPatch(transcript=[*read, *new]))

    def _files_of(self, contents: Sequence[str]) -> Iterator[StoredFile]:
        for batch in batches(contents, _CONTENTS):
            yield from self.list_files(None, batch)

    def _may_exist(self, row: StoredFile) -> bool:
        """Whether a file is there, or may be: its folder cannot be read, or its disk is not mounted."""
        if row.path is None:  # another file took its path
            return False
        if not self._is_allowed(row.source) or self._is_there(row):
            return True
        device = folder_device(Path(row.source) / row.path)
        return (row.file_id or "").partition(":")[0] not in ("", device)

    def _is_there(self, row: StoredFile) -> bool:
        if row.path is None or not self._is_allowed(row.source):
            return False
        try:
            status = os.stat(Path(row.source) / row.path)
        except (OSError, ValueError) as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError)
        return (status.st_size, status.st_mtime_ns) == (row.bytes, row.modified)

    def _is_gone(self, source: str) -> bool:
        return self._is_readable(os.path.dirname(source)) and not os.path.lexists(source)

    def _is_allowed(self, source: str) -> bool:
        is_local = bool(source) and not is_source_uri(source)
        return is_local and (self.root is None or Path(source).is_relative_to(self.root))

    def _is_readable(self, source: str) -> bool:
        return self._is_allowed(source) and os.path.isdir(source)


def folder_device(path: Path) -> str | None:
    """Find the device of the nearest existing folder above a path; None if it is unknown."""
    for folder in path.parents:
        with suppress(OSError, ValueError):
            return str(folder.stat().st_dev)
    return None
