"""Apply a sync's plan to a library: workers with the functions of the service, commands with a client."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cinestrata_schemas.syncs import FollowedSource, StoredFile, SyncedFilesPatch
from cinestrata_schemas.tasks import VideoSpec
from cinestrata_schemas.videos import VideoDetails, VideoPatch
from index.arrays import batches
from media.sources.media_source import is_source_uri
from service.core.errors import NotFound
from service.syncs.sync_plan import FollowedDomain, SourceFiles, SyncPlan, transcript_digest

_BATCH = 1000  # files per call
_CONTENTS = 50  # per call


@dataclass(frozen=True)
class FollowedLibrary:
    """The operations of a library that a sync needs.

    Attributes:
        list_files: Lists the followed files of a domain, or those with certain contents.
        list_sources: Lists the sources of all domains.
        record_files: Records what a sync saw.
        get_video: Looks up a video; raises NotFound.
        edit_video: Changes a video.
        root: Folder with all sources that this process may look into; None: any folder.
    """

    list_files: Callable[[str | None, Sequence[str]], Iterable[StoredFile]]
    list_sources: Callable[[], list[FollowedSource]]
    record_files: Callable[[SyncedFilesPatch], object]
    get_video: Callable[[str], VideoDetails]
    edit_video: Callable[[str, VideoPatch], object]
    root: Path | None = None

    def find_former(self, found: SourceFiles, files: Iterable[StoredFile]) -> set[str]:
        """Find the earlier places of a source that was moved: folders that are gone and whose files are here now."""
        here = {(file.video.uri, file.bytes, file.modified) for file in found.files}
        sources = {row.source for row in files if (row.path, row.bytes, row.modified) in here}
        return {source for source in sources - {found.source} if self._is_gone(source)}

    def find_moved_source(self, found: SourceFiles) -> str | None:
        """Find the domain that follows a source from its earlier place; None if there is none."""
        for other in self.list_sources():
            if self._is_gone(other.source) and self.find_former(found, self.list_files(other.task_id, ())):
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

    def find_existing(self, plan: SyncPlan, domain: FollowedDomain, source: str) -> set[str]:
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
        found: set[str] = set()
        folders = {other.source for other in self.list_sources()} if wanted else set()
        for folder in filter(self._is_readable, folders - {source}):
            for place, _, names in os.walk(folder):
                for name in names:
                    with suppress(OSError):
                        status = os.stat(os.path.join(place, name))
                        if video_id := wanted.get((status.st_size, status.st_mtime_ns)):
                            found.add(video_id)
        return found

    def record(
        self,
        task_id: str,
        source: str,
        plan: SyncPlan,
        place: Callable[[Sequence[VideoSpec]], list[VideoSpec]],
        *,
        is_sent: bool = False,
    ) -> None:
        """Record the files of a plan, and rename videos.

        Args:
            task_id: ID of the domain.
            place: Completes videos' URIs to the form that tasks use.
            is_sent: Whether the new videos and versions have been sent.
        """
        if is_sent:
            for rows in batches(list(plan.late_rows.values()), _BATCH):
                self.record_files(SyncedFilesPatch(task_id=task_id, source=source, files=list(rows)))
            return
        in_place = {video: path for video, path in plan.renamed.items() if video not in plan.uploads}
        placed = place([VideoSpec.model_construct(uri=path) for path in in_place.values()])
        uris = plan.renamed | {video: spec.uri for video, spec in zip(in_place, placed, strict=True)}
        rows, videos = list(plan.rows.values()), list(uris)
        for start in range(0, max(len(rows), len(plan.forgotten), len(videos)), _BATCH):
            part = slice(start, start + _BATCH)
            self.record_files(
                SyncedFilesPatch(
                    task_id=task_id,
                    source=source,
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
                if transcript_digest(self.get_video(video).transcript) in (None, previous):
                    self.edit_video(video, VideoPatch(transcript=cues))

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
