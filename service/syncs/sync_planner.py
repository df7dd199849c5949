"""Plan a sync: identify files by size, times, inode and content, and find the video of each content."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from cinestrata_schemas.syncs import StoredFile, SyncedFile
from cinestrata_schemas.videos import VideoDetails, VideoSummary
from service.catalog.video_texts import GIVEN_SOURCES
from service.core.request_limits import MAX_CAPTIONS
from service.syncs import sync_plan
from service.tasks.ingestion_checks import normalize_caption


def plan_sync(
    source: sync_plan.SourceFiles,
    domain: sync_plan.FollowedDomain,
    library: sync_plan.FollowedLibrary | None = None,
    *,
    compare_contents: bool = False,
    report_alive: Callable[[], object] = lambda: None,
) -> sync_plan.SyncPlan:
    """Compare a source with its domain, and with the library, where files may have been moved from and to.

    To ``compare_contents`` reads all files, also those whose size and times are unchanged. ``report_alive`` is called
    after each file.
    """
    planner = _Planner(source, domain)
    planner.identify(compare_contents, report_alive)
    return planner.settle(library)


class _Planner:
    def __init__(self, source: sync_plan.SourceFiles, domain: sync_plan.FollowedDomain) -> None:
        self._source = source
        self._domain = domain
        self._plan = sync_plan.SyncPlan(left_out=dict(source.left_out))
        self._videos = {video.id: video for video in domain.videos}
        accepted = [video for video in domain.videos if video.status == "accepted"]
        self._accepted = {video.content_hash: video for video in accepted if video.content_hash}
        self._copies: dict[str, VideoSummary] = {}  # by the video that they replace
        for video in sorted(domain.videos, key=lambda video: video.status != "rejected"):
            if video.replaces:
                self._copies[video.replaces] = video
        paths = [file.video.uri for file in source.files]
        sources = {source.source, *domain.former}
        self._followed = {row.key: row for row in domain.files if row.source in sources}
        self._others = {row.video_id for row in domain.files if row.source not in sources}
        self._add_unrecorded(domain)
        self._rows_of: dict[str, list[StoredFile]] = {}
        self._recorded: dict[str, list[str]] = {}  # videos that were recorded for a content
        for row in self._followed.values():
            if row.video_id:
                self._rows_of.setdefault(row.video_id, []).append(row)
                if row.sha256:
                    self._recorded.setdefault(row.sha256, []).append(row.video_id)
        self._rows: dict[str, StoredFile] = {}
        for path in paths:
            keys = (sync_plan.file_key(location, path) for location in (source.source, *domain.former))
            if stored := next((self._followed[key] for key in keys if key in self._followed), None):
                self._rows[path] = stored
        self._identities = {
            (row.bytes, row.modified, row.file_id): row
            for row in self._followed.values()
            if row.file_id and not row.file_id.endswith(":")
        }
        self._files: dict[str, sync_plan.SourceFile] = {}
        self._contents: dict[str, list[str]] = {}  # paths by content
        self._present: set[str] = set()  # videos that are in a file, or wait for one
        self._waiting: set[str] = set()
        self._replaced: set[str] = set()
        self._elsewhere: set[str] = set()
        self._edited: dict[str, tuple[list[str], str | None]] = {}  # texts before, by path

    def identify(self, compare_contents: bool, report_alive: Callable[[], object]) -> None:
        """Find the content of each file."""
        for file in self._source.files:
            path = file.video.uri
            try:
                content = self._identify(file, compare_contents)
            except OSError as error:  # while its content was read
                self._plan.left_out[path] = f"The file cannot be read ({error.strerror})."
                self._rows.pop(path, None)
                continue
            self._files[path] = file
            self._contents.setdefault(content, []).append(path)
            report_alive()

    def settle(self, library: sync_plan.FollowedLibrary | None) -> sync_plan.SyncPlan:
        """Find the video of each content, and the videos without a file."""
        unknown = [
            content for content, paths in self._contents.items() if not self._find_video(content, paths)
        ]
        moved: dict[str, str] = {}
        if library is not None and unknown:
            moved = library.find_moved(self._source.source, unknown)
            changed = [path for content in unknown for path in self._contents[content] if path in self._rows]
            self._elsewhere = library.find_elsewhere(
                self._source.source, [self._rows[path] for path in changed]
            )
        is_new = not self._domain.published
        for content in unknown:
            original = moved.get(content)
            self._send(content, self._contents[content], None if is_new else original)
            if is_new and original and library is not None:
                self._copy_texts(library.get_video(original))
        self._find_vanished()
        return self._plan

    def _add_unrecorded(self, domain: sync_plan.FollowedDomain) -> None:
        """Treat videos from the source that no sync has recorded like the others."""
        recorded = {row.video_id for row in domain.files}
        for video in domain.videos:
            path = self._source.path_of(video.uri)
            if path is None or video.id in recorded or video.replaces:
                continue
            key = sync_plan.file_key(self._source.source, path)
            if key not in self._followed:
                self._followed[key] = StoredFile(
                    key=key,
                    task_id=video.task_id,
                    source=self._source.source,
                    path=path,
                    sha256=video.content_hash,
                    video_id=video.id,
                )

    def _identify(self, file: sync_plan.SourceFile, compare_contents: bool) -> str:
        """Find a file's content, reading it only if its size, times or inode have changed; raises OSError."""
        path = file.video.uri
        row = self._rows.get(path)
        content = None if row is None else self._stored_content(file, row)
        if content is None:
            twin = self._identities.get((file.bytes, file.modified, file.file_id))
            content = twin.sha256 if twin is not None and twin is not row else None  # it was renamed
        if content is None or (compare_contents and file.content is not None):
            content = file.token if file.content is None else file.content()
        file_id = file.file_id
        if row is not None and row.file_id and file.modified is not None:
            device, _, inode = file_id.rpartition(":")
            times = (row.modified, row.changed, row.sha256)
            if times == (file.modified, file.changed, content) and row.file_id.rpartition(":")[2] != inode:
                file_id = f"{device}:"  # the share changes inodes: that of this file is not compared again
        captions = list(dict.fromkeys(map(normalize_caption, file.video.captions)))
        self._plan.rows[path] = SyncedFile(
            path=path,
            bytes=file.bytes,
            modified=file.modified,
            changed=file.changed,
            file_id=file_id,
            sha256=content,
            captions=captions,
            transcript=sync_plan.transcript_digest(file.video.transcript),
        )
        return content

    def _stored_content(self, file: sync_plan.SourceFile, row: StoredFile) -> str | None:
        """Return the content that a row remembers, if the file is still the one it describes."""
        if row.bytes != file.bytes or row.file_id is None:
            return None
        stored, current = (text.rpartition(":")[2] for text in (row.file_id, file.file_id))
        if row.modified is None:
            return file.token if file.modified is None and current == stored else None
        is_same = (row.modified, row.changed) == (file.modified, file.changed) and stored in ("", current)
        return row.sha256 if is_same else None

    def _find_video(self, content: str, paths: list[str]) -> bool:
        """Use the video that the domain has for a content; False if there is none."""
        video = self._accepted.get(content)
        if video is not None:
            self._use(video, paths)
            return True
        is_object = self._files[paths[0]].content is None
        for video_id in dict.fromkeys(self._recorded.get(content, ())):
            video, copy = self._videos.get(video_id), self._copies.get(video_id)
            if video is not None and video.status == "accepted" and copy is None:
                if is_object and video_id not in self._domain.abandoned:
                    self._use(video, paths)
                    return True
                continue
            judged = video if video is not None and video.status != "accepted" else copy
            if judged is None:  # deleted
                continue
            if judged.status != "rejected":
                self._plan.unchanged += len(paths)
                self._wait(video_id, paths)
                return True
            original = self._accepted.get(judged.content_hash or "") if is_object else None
            if original is not None:  # its content was known only after the download
                self._use(original, paths)
                return True
            is_renamed = self._source.path_of(judged.uri) not in (None, *paths)  # before it was probed
            if judged.content_hash or is_renamed:  # or its original is gone
                self._supersede(judged)
                continue
            self._present.add(video_id)
            for path in paths:
                self._plan.rejected[path] = judged.reason or ""
                self._plan.rows[path].video_id = video_id
            return True
        return False

    def _use(self, video: VideoSummary, paths: list[str]) -> None:
        """Let a video of the domain have these files."""
        self._plan.unchanged += len(paths)
        video_id = video.replaces or video.id
        self._present.add(video_id)
        if video.replaces or video.task_id not in self._domain.published:
            self._wait(video_id, paths)
            return
        rows = self._rows_of.get(video.id, [])
        is_followed = bool(rows) or video.id in self._others
        is_part = is_followed or any(self._is_at(video.uri, path) for path in paths)
        self._update_texts(video, paths, rows)
        if not is_part:
            return
        for path in paths:
            self._plan.rows[path].video_id = video.id
        if video.id not in self._others and self._is_renamed(video, paths, rows):
            self._plan.renamed[video.id] = paths[0]
            if video.uri.startswith("upload:"):
                self._plan.uploads.add(video.id)

    def _is_renamed(self, video: VideoSummary, paths: list[str], rows: Sequence[StoredFile]) -> bool:
        """Whether a video's URI names none of its files any more."""
        named = self._source.path_of(video.uri)
        if named is not None or (rows and "://" not in video.uri):
            return named not in paths
        before = {row.path for row in rows if row.path is not None}
        lost = before.difference(paths)
        if before and lost != before:
            return any(self._is_at(video.uri, path) for path in lost)
        return bool(lost) or not any(self._is_at(video.uri, path) for path in paths)

    def _wait(self, video_id: str, paths: list[str]) -> None:
        """Leave files as they are until the append with their video has ended."""
        self._present.add(video_id)
        self._waiting.add(video_id)
        for path in paths:
            row = self._rows.get(path)
            if row is not None and row.video_id == video_id:  # its texts are merged later
                facts = {"video_id": video_id, "captions": row.captions, "transcript": row.transcript}
                self._plan.rows[path] = self._plan.rows[path].model_copy(update=facts)
            else:  # remembered once the video can be renamed
                del self._plan.rows[path]

    def _update_texts(self, video: VideoSummary, paths: list[str], rows: Sequence[StoredFile]) -> None:
        """Merge captions that the source has changed into those of a video, and find a new transcript.

        Texts that a file has lost stay, also as what the source said last: they may come back, changed.
        """
        for path in paths:
            row, planned = self._rows.get(path), self._plan.rows[path]
            if row is not None and row.video_id == video.id:
                texts = {
                    "captions": planned.captions or row.captions,
                    "transcript": planned.transcript or row.transcript,
                }
                self._plan.rows[path] = planned.model_copy(update=texts)
        theirs = _merged(self._plan.rows[path].captions for path in paths)
        here = [self._rows[path] for path in paths if path in self._rows]
        rows = [*rows, *(row for row in here if row.video_id is None)]
        base = _merged(row.captions for row in rows)
        if theirs and theirs != base:
            # What people added stays, and what they removed stays away.
            captions = [text for text in theirs if text not in base or text in video.captions]
            captions += [text for text in video.captions if text not in base and text not in theirs]
            if captions[:MAX_CAPTIONS] != list(dict.fromkeys(video.captions)):
                self._plan.recaptioned[video.id] = captions[:MAX_CAPTIONS]
        if video.id in self._plan.recaptioned:
            self._edited |= dict.fromkeys(paths, (base, ""))
        transcripts = {row.path: row.transcript for row in rows if row.path is not None}
        for path in paths:
            cues, digest = self._files[path].video.transcript, self._plan.rows[path].transcript
            if cues and transcripts and digest not in transcripts.values():
                previous = transcripts.get(path, next(iter(transcripts.values())))
                self._plan.transcripts[video.id] = (list(cues), previous)
                self._edited |= dict.fromkeys(paths, (base, previous))
                return

    def _send(self, content: str, paths: list[str], moved: str | None) -> None:
        """Send a file whose content the domain lacks."""
        replaced = None
        for path in paths:
            row = self._rows.get(path)
            video_id = row.video_id or "" if row is not None else ""
            video = self._videos.get(video_id) or self._copies.get(video_id)
            if video is None:
                continue
            if video.status == "rejected":
                self._supersede(video)
                continue
            copy = self._copies.get(video.id)
            if video.task_id not in self._domain.published or (copy and copy.status != "rejected"):
                self._plan.rows.pop(path)
                self._wait(video_id, [])
                self._plan.unchanged += 1
                paths = [other for other in paths if other != path]
                continue
            if replaced is None and not self._is_elsewhere(video, content):
                replaced = video.id
                if copy is not None:
                    self._supersede(copy)
        if not paths:
            return
        replaces = replaced or moved
        sent_id = f"vid_{secrets.token_hex(8)}"
        sent: dict[str, Any] = {"id": sent_id, "replaces": replaces}
        sent["captions"] = _merged(self._plan.rows[path].captions for path in paths)[:MAX_CAPTIONS]
        video_spec = self._files[paths[0]].video.model_copy(update=sent)
        (self._plan.changed if replaced else self._plan.new).append(video_spec)
        if replaced:
            self._replaced.add(replaced)
            self._update_texts(self._videos[replaced], paths, self._rows_of.get(replaced, []))
        for path in paths:
            self._plan.rows[path].video_id = replaces or sent_id
            if replaced and self._files[path].content is None:
                self._plan.late_rows[path] = self._plan.rows.pop(path)

    def _copy_texts(self, original: VideoDetails) -> None:
        """Give the video that was planned last the texts of its original: a new domain cannot take that over."""
        video = self._plan.new[-1]
        given = [cue for cue in original.transcript if cue.source in GIVEN_SOURCES]
        texts = {
            "captions": _merged([video.captions, original.captions])[:MAX_CAPTIONS],
            "metadata": {**original.metadata, **(video.metadata or {})},
            "transcript": video.transcript or [cue.model_copy(update={"id": None}) for cue in given],
        }
        self._plan.new[-1] = video.model_copy(update=texts)

    def _is_elsewhere(self, video: VideoSummary, content: str) -> bool:
        """Whether a file still has a video's content, or another file is already its new version."""
        return (
            video.content_hash in self._contents
            or video.id in self._others | self._elsewhere
            or video.id in self._replaced | self._present
            or any(
                row.modified is None and row.sha256 != content and row.sha256 in self._contents
                for row in self._rows_of.get(video.id, ())
            )
        )

    def _is_at(self, uri: str, path: str) -> bool:
        """Whether a video's URI names the file at this path; an upload keeps the end of its path."""
        named = self._source.path_of(uri)
        return path == named if named is not None else uri.endswith(f"/{path}")

    def _supersede(self, video: VideoSummary) -> None:
        if video.id not in self._plan.superseded:
            self._plan.superseded.append(video.id)

    def _find_vanished(self) -> None:
        in_source = self._present | self._replaced
        listed = {row.key for row in self._rows.values()}
        absent = [row for row in self._followed.values() if row.key not in listed]
        protected = self._find_protected(absent)
        for video_id, rows in self._rows_of.items():
            video = self._videos.get(video_id)
            if video is None or video.status != "accepted":
                continue
            self._plan.followed += 1
            is_gone = video_id not in in_source and video_id not in self._others
            if is_gone and not any(row.key in protected for row in rows):
                self._plan.vanished.append(video_id)
        remembered = {*self._plan.vanished, *self._waiting}
        accounted_for = (in_source | self._others) - self._waiting
        existing = self._videos.keys() | remembered
        self._plan.forgotten = [
            row.key
            for row in absent
            if row.key not in protected and (row.video_id in accounted_for or row.video_id not in existing)
        ]
        # A row of a former location has another key.
        moved = [path for path, row in self._rows.items() if row.source != self._source.source]
        self._plan.forgotten += [self._rows[path].key for path in moved if path in self._plan.rows]
        self._keep_displaced(remembered)
        for path, (captions, transcript) in self._edited.items():
            if path in self._plan.rows:  # once the texts are edited, so that an interrupted run repeats it
                self._plan.late_rows[path] = new = self._plan.rows[path]
                before = new.transcript if transcript == "" else transcript
                self._plan.rows[path] = new.model_copy(update={"captions": captions, "transcript": before})
        for path, row in self._rows.items():
            if row.source != self._source.source or (planned := self._plan.rows.get(path)) is None:
                continue
            if all(getattr(planned, name) == getattr(row, name) for name in SyncedFile.model_fields):
                del self._plan.rows[path]

    def _keep_displaced(self, videos: Collection[str]) -> None:
        """Remember videos that still wait or are not deleted yet, although another file took their only path."""
        planned = [(path, row) for path, row in self._rows.items() if path in self._plan.rows]
        taken = {row.key: row for path, row in planned if self._plan.rows[path].video_id != row.video_id}
        for row in taken.values():
            video_id = row.video_id or ""
            if video_id in videos and all(other.key in taken for other in self._rows_of[video_id]):
                self._plan.rows[f"\0{video_id}"] = SyncedFile(
                    path=None, bytes=row.bytes, modified=row.modified, sha256=row.sha256, video_id=video_id
                )

    def _find_protected(self, absent: Sequence[StoredFile]) -> set[str]:
        """Find the absent files that may still exist: they were left out, or their disk is not mounted."""
        signatures = {path: self._source.signature_of(path) for path in self._plan.left_out}
        left_out = [path for path, signature in signatures.items() if signature] + list(self._source.uploaded)
        unusable = {path.rstrip("/") for path in left_out}
        # A path that ends with a slash is a folder with unknown files.
        is_incomplete = any(path.endswith("/") for path in left_out)
        # A restart may give a disk another number: a file that is still there shows which one.
        devices = {
            (_device(row.file_id), _device(self._files[path].file_id))
            for path, row in self._rows.items()
            if path in self._files
        }

        def is_protected(row: StoredFile) -> bool:
            if (row.bytes, row.modified) in signatures.values():  # it has an unusable name now
                return True
            if row.path is None:
                return is_incomplete
            places = (row.path, *map(str, PurePosixPath(row.path).parents))
            before, device = _device(row.file_id), self._source.device_of(row.path)
            is_mounted = not before or device in (None, before) or (before, device) in devices
            return not (is_mounted and unusable.isdisjoint(places))

        return {row.key for row in absent if is_protected(row)}


def _device(file_id: str | None) -> str:
    return (file_id or "").partition(":")[0]


def _merged(captions: Iterable[Sequence[str] | None]) -> list[str]:
    return list(dict.fromkeys(text for texts in captions for text in texts or ()))
