"""Writing: content folders first, then one manifest whose replacement makes them visible."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ManifestError, ShardCorrupt, ShardInvalid, ShardMissing, ShardStoreError
from index.files.durable_files import damage, exclusive, hash_files, replace_text, sync
from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry, TombstoneEntry, content_id
from index.files.tombstones import DELETED, read_tombstones
from index.scanning.gpu_scan import on_gpu
from index.scanning.search_options import AnnPolicy, Device
from index.scanning.segment import DESCRIPTION, IDS, QUERIES, describe, require_whole
from index.scanning.segment_cache import SegmentCache
from index.shards.empty_vector_store import EmptyVectorStore
from index.shards.faiss_vector_store import FaissVectorStore
from index.shards.searchable_shard import SearchableShard
from index.shards.vector_store import CheckLevel, Rows, VectorStore
from index.vector_ids import video_ids_of

__all__ = ["ShardStore"]

_UNIT = 1e-3  # how far a row's length may be from one
_ABANDONED_SECONDS = 3600
_DTYPE = "float16"  # of what is written now
_WIDTHS = ("float16", "float32")
_COPIED = 16_384  # vectors at a time

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_NONE = np.empty(0, np.int64)


class ShardStore:
    """A folder of shards and releases.

    One process writes (the learning worker), any number read. FaissShard and release folders are immutable; only
    ``manifest.json`` is ever replaced. Nothing is created before the first write, so readers need no right to write.
    The rows of a shard are in its folder, or in another store that the folder names (:mod:`index.shards.vector_store`).

    Attributes:
        root: the folder.
        policy: when what is written gets a search structure.
        opened: the segments that its readers in this process have mapped.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_mapped_bytes: int | None = None,
        policy: AnnPolicy | None = None,
        device: Device = "cpu",
        remote: VectorStore | None = None,
        write_remote: bool = False,
    ) -> None:
        """A store in a folder.

        Args:
            max_mapped_bytes: how much of it may be mapped at once, in bytes of files; None: all of it.
            policy: when what is written gets a search structure; None: as :class:`AnnPolicy` says.
            device: where it is searched; ``auto``: on a GPU if there is one.
            remote: who holds the rows of shards whose entry names a place outside their folder.
            write_remote: give it the rows of new tasks too. What is there stays where it is, until it is moved.

        Raises:
            DeviceMissing: the device is not there.
        """
        self.root = root
        self.policy = policy or AnnPolicy()
        self.segment_cache = SegmentCache(max_mapped_bytes, gpu=on_gpu(device))
        self._files = FaissVectorStore(self.segment_cache, lambda: self.policy)
        self._emptied = EmptyVectorStore()
        self._remote = remote
        self._chosen: VectorStore = remote if remote is not None and write_remote else self._files

    @property
    def manifest_path(self) -> Path:
        return self.root / "manifest.json"

    @property
    def _shards(self) -> Path:
        return self.root / "shards"

    @property
    def _releases(self) -> Path:
        return self.root / "releases"

    @property
    def _tombstones(self) -> Path:
        return self.root / "tombstones"

    @property
    def _staging(self) -> Path:
        return self.root / "tmp"

    def shard_folder(self, shard: str) -> Path:
        """Folder of a shard by id."""
        return self._shards / shard

    def release_folder(self, release: str) -> Path:
        """Folder of a release by id."""
        return self._releases / release

    def tombstone_folder(self, tombstones: str) -> Path:
        """Folder of a task's deletions by id."""
        return self._tombstones / tombstones

    def stage(self) -> Path:
        """A fresh temporary folder on the store's file system."""
        folder = self._staging / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A staged folder that is gone afterwards, unless it was taken over: what fails leaves nothing behind."""
        folder = self.stage()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def write_shard(
        self,
        *,
        task: str,
        release: str,
        fingerprint: str,
        ids: Ids,
        vectors: Vectors,
        queries: Vectors | None = None,
        heartbeat: Callable[[], object] = lambda: None,
    ) -> SegmentEntry:
        """Write a shard durably. It stays invisible until published.

        Args:
            task: id of the task.
            release: id of the release that made the vectors.
            fingerprint: of its video encoder.
            ids: ``int64 [n]``, non-negative, each once.
            vectors: ``float32 [n, dim]``, rows of unit length; stored in half precision.
            queries: ``float32 [m, dim]``, of training captions: what a search structure must serve if the shard is
                large enough for one; see :mod:`index.scanning.ann_index`. Without them it is searched exactly.
            heartbeat: called again and again while a structure is built, which takes minutes.

        Raises:
            ShardInvalid: ids or vectors break these rules; names which.
        """
        ids, vectors = _checked(task, ids, vectors)
        # A task stays in one store: what is appended goes to where the rest is.
        published = self.manifest().shards.get(task) if self._remote is not None else None
        holder = self._holder(published) if published and published.count else self._chosen

        def rows() -> Iterator[Vectors]:
            for start in range(0, len(vectors), _COPIED):
                yield vectors[start : start + _COPIED]

        draft = _draft(task, release, fingerprint, vectors.shape[1])
        return self._write(draft, ids, rows, holder, queries, heartbeat)

    def _write(
        self,
        draft: SegmentEntry,
        ids: Ids,
        rows: Rows,
        holder: VectorStore,
        queries: Vectors | None,
        heartbeat: Callable[[], object] = lambda: None,
    ) -> SegmentEntry:
        place = holder.place(draft.task, draft.dim)
        first, last = (int(ids[0]), int(ids[-1])) if len(ids) else (0, -1)
        draft = replace(draft, count=len(ids), first_id=first, last_id=last, place=place)
        with self.staging() as staged:
            structure = holder.stage(staged, draft, rows, queries, heartbeat)
            np.save(staged / IDS, ids, allow_pickle=False)
            draft = replace(draft, structure=structure)
            entry = replace(draft, files=hash_files(staged))
            (staged / DESCRIPTION).write_text(json.dumps(describe(entry), indent=1) + "\n", encoding="utf-8")
            shard, size, files = self._settle(staged, self._shards)
        entry = replace(entry, id=shard, bytes=size, files=files)
        holder.insert(entry, ids, rows)
        return entry

    def _holder(self, entry: SegmentEntry) -> VectorStore:
        if not entry.count:
            return self._emptied
        if not entry.place:
            return self._files
        if self._remote is None:
            raise ShardMissing(
                f"the vectors of task {entry.task} are in another store ({entry.place}), and none is set: set "
                "CINESTRATA_MILVUS__URI"
            )
        return self._remote

    def check(self, entry: SegmentEntry, depth: CheckLevel) -> None:
        """See :meth:`VectorStore.check`; the files of its folder are not compared here."""
        self._holder(entry).check(self.shard_folder(entry.id), entry, depth)

    def open(self, parts: Sequence[SegmentEntry], deleted: Ids = _NONE) -> SearchableShard:
        """The vectors of a task's segments, without the deleted ids.

        Raises:
            ShardMissing: another store holds them, and none is set.
        """
        return self._holder(parts[0]).open([(self.shard_folder(part.id), part) for part in parts], deleted)

    def adopt_release(self, staged: Path) -> ReleaseEntry:
        """Take over a staged folder of plain files as a release. It stays invisible until published.

        Raises:
            ShardInvalid: the folder is empty, or holds something that is not a plain file.
        """
        odd = [path.name for path in staged.iterdir() if path.is_symlink() or not path.is_file()]
        if odd or not any(staged.iterdir()):
            raise ShardInvalid(f"a release must be a folder of plain files; found {', '.join(odd) or 'none'}")
        release, size, files = self._settle(staged, self._releases)
        return ReleaseEntry(release, size, files)

    def manifest(self) -> Manifest:
        """The current manifest; an empty one before the first publication.

        Raises:
            ManifestError: it cannot be trusted.
        """
        try:
            return Manifest.loads(self.manifest_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Manifest.empty()
        except UnicodeDecodeError as error:
            raise ManifestError("manifest.json is not text; restore it from a backup") from error
        except OSError as error:
            raise ManifestError(f"manifest.json cannot be read ({error.strerror})") from error

    def publish(
        self,
        *,
        release: ReleaseEntry,
        shards: Sequence[SegmentEntry],
        segments: Sequence[SegmentEntry] = (),
        deleted: Iterable[int] = (),
    ) -> Manifest:
        """Make a release current, and shards visible with it. The publish point of the whole store.

        Publishing shards that are already there changes nothing, so a writer that died may try again, and one
        that was overtaken cannot bring an old release back.

        Args:
            segments: further vectors of these shards' tasks, which become visible with them or not at all.
            deleted: ids that were deleted while the new shards were made: no generation ever shows them.

        Raises:
            ShardInvalid: a shard contradicts a published one (same task, same ids, another dimension), or is not
                in the store as it was written.
            ManifestError: the current manifest cannot be trusted.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with exclusive(self.root / "write.lock"):
            current = self.manifest()
            releases = {**current.releases, release.id: release}
            new = [shard for shard in shards if current.shards.get(shard.task) != shard]
            if not new and release.id in current.releases:
                sync(self.root)  # whoever published it may have died just before this
                return current
            _require_whole(f"release {release.id[:12]}", self.release_folder(release.id), release)
            manifest = replace(current, release=release.id, releases=releases)
            for shard in new:
                self._require_new_task(shard, manifest)
                self._require_fit(shard, manifest)
                manifest = replace(manifest, shards={**manifest.shards, shard.task: shard})
                for segment in segments:
                    if segment.task == shard.task:
                        manifest = self._with_segment(segment, manifest)
            gone = np.unique(np.fromiter(deleted, np.int64))
            for shard in new if len(gone) else ():
                here = _with_moments(gone, [self._ids(part) for part in manifest.segments(shard.task)])
                if len(here):
                    stones = {**manifest.tombstones, shard.task: self._write_tombstones(shard.task, here)}
                    manifest = replace(manifest, tombstones=stones)
            return self._publish(current, manifest)

    def append(self, segment: SegmentEntry) -> Manifest:
        """Make further vectors of a published task visible, beside those that it has.

        Appending what is there already changes nothing.

        Raises:
            ShardInvalid: the task is not published, its release is not the one that made the segment, an id is
                there already, or the segment is not in the store as it was written.
            ManifestError: the current manifest cannot be trusted.
        """
        with exclusive(self.root / "write.lock"):
            current = self.manifest()
            if segment.task in current.shards and segment in current.segments(segment.task):
                return current
            return self._publish(current, self._with_segment(segment, current))

    def delete(self, ids: Iterable[int], *, task: str | None = None) -> Manifest:
        """Let no search find these ids any more. Their vectors stay where they are until the task is compacted.

        With a video go its moments. Deleting what was deleted already changes nothing.

        Args:
            task: the only one that is looked at. Ids that it does not have are left out then: a video that was never
                embedded, or whose task is not published, has no vector.

        Raises:
            ShardMissing: no task has such an id; nothing is deleted then. Never with ``task``.
            ManifestError, ShardCorrupt: what is there cannot be trusted.
        """
        wanted = np.unique(np.fromiter(ids, np.int64))
        with exclusive(self.root / "write.lock"):
            current = self.manifest()
            unknown, tombstones = wanted, dict(current.tombstones)
            for name in current.shards if task is None else {task} & current.shards.keys():
                here = _with_moments(wanted, [self._ids(part) for part in current.segments(name)])
                unknown = np.setdiff1d(unknown, here, assume_unique=True)
                before = self.tombstones(current, name)
                after = np.union1d(before, here)
                if len(after) > len(before):
                    tombstones[name] = self._write_tombstones(name, after)
            if len(unknown) and task is None:
                raise ShardMissing(f"no task has a vector {int(unknown[0])}")
            if tombstones == current.tombstones:
                return current
            return self._publish(current, replace(current, tombstones=tombstones))

    def compact(self, task: str) -> Manifest:
        """Copy what a task has, without what was deleted, into one new segment. Nothing is embedded again.

        The vectors are copied bit by bit, so every search gives what it gave before. Other writers wait meanwhile.
        Where nothing is left, nothing is read: an empty shard takes the place, until something is appended to it.

        Raises:
            ShardMissing: the task is not published, or a file of it is missing.
            ManifestError, ShardCorrupt: what is there cannot be trusted.
        """
        with exclusive(self.root / "write.lock"):
            current = self.manifest()
            if task not in current.shards:
                raise ShardMissing(f"task {task} has no shard")
            parts = current.segments(task)
            if len(parts) == 1 and task not in current.tombstones:
                return current
            return self._rewrite(current, task)

    def clear(self, task: str) -> Manifest:
        """Delete all of a task at once, and empty it, whatever state its files are in. A task that is not published has
        nothing.

        Raises:
            ManifestError: the manifest cannot be trusted.
        """
        with exclusive(self.root / "write.lock"):
            current = self.manifest()
            if task not in current.shards or not current.shards[task].count:
                return current
            return self._replace(current, task, self._emptied_shard(current, task))

    def move(self, task: str) -> Manifest:
        """Copy what a task has, without what was deleted, to the store that new tasks are written to. A task that is
        there already stays as it is, and nothing is embedded again.

        Vectors in half precision are copied bit by bit; those of schema 1 are rounded to it on their way to another
        store, by less than 0.0005 of a cosine. A task of which nothing is left is emptied, as :meth:`compact` does.

        Raises:
            ShardMissing, ManifestError, ShardCorrupt: as :meth:`compact`.
            StoreUnavailable: one of the stores cannot be used.
        """
        with exclusive(self.root / "write.lock"):
            current = self.manifest()
            if task not in current.shards:
                raise ShardMissing(f"task {task} has no shard")
            if self._holder(current.shards[task]) in (self._chosen, self._emptied):
                return current
            return self._rewrite(current, task, self._chosen)

    def _rewrite(self, current: Manifest, task: str, holder: VectorStore | None = None) -> Manifest:
        """Copy a task into one new segment, and publish that in place of what it had.

        Args:
            holder: who takes it; None: whoever has it.
        """
        if not current.live_count(task):
            return self._replace(current, task, self._emptied_shard(current, task))
        return self._replace(current, task, self._copy(current, task, holder))

    def _replace(self, current: Manifest, task: str, shard: SegmentEntry) -> Manifest:
        """Publish a shard in place of all that a task had."""
        self._require_whole_shard(f"shard {shard.id[:12]}", shard)
        return self._publish(
            current,
            replace(
                current,
                shards={**current.shards, task: shard},
                appended={key: rest for key, rest in current.appended.items() if key != task},
                tombstones={key: entry for key, entry in current.tombstones.items() if key != task},
            ),
        )

    def _copy(self, current: Manifest, task: str, holder: VectorStore | None) -> SegmentEntry:
        """What is left of a task, as one shard that is not published yet."""
        parts, deleted = current.segments(task), self.tombstones(current, task)
        holder = holder or self._holder(parts[0])
        for part in parts:
            require_whole(self.shard_folder(part.id), part, verify=True)
            self.check(part, "bytes")
        old = self.open(parts, deleted)
        ids = old.ids

        def rows() -> Iterator[Vectors]:
            for start in range(0, len(ids), _COPIED):
                yield old.vectors(ids[start : start + _COPIED])

        # The widest that it has: half precision survives single, not the other way round.
        widest = max((part.dtype for part in parts), key=_WIDTHS.index)
        dtype = widest if holder is self._files else _DTYPE
        first = parts[0]
        draft = _draft(task, first.release, first.fingerprint, first.dim, dtype)
        return self._write(draft, ids, rows, holder, self._queries(parts))

    def _emptied_shard(self, current: Manifest, task: str) -> SegmentEntry:
        """The shard of a task of which nothing is left. What it had may be damaged, or out of reach."""
        first = current.shards[task]
        draft = _draft(task, first.release, first.fingerprint, first.dim)
        return self._write(draft, _NONE, lambda: (), self._emptied, None)

    def tombstones(self, manifest: Manifest, task: str) -> Ids:
        """Ids that were deleted from a task, ascending; raises ShardCorrupt."""
        entry = manifest.tombstones.get(task)
        return read_tombstones(self.tombstone_folder(entry.id) if entry else self.root, entry)

    def _queries(self, parts: Sequence[SegmentEntry]) -> Vectors | None:
        """What the segments of a task were measured with."""
        # By content: segments that were laid down together were measured with the same ones.
        folders = {part.files[QUERIES]: self.shard_folder(part.id) for part in parts if QUERIES in part.files}
        every = [np.load(folder / QUERIES, allow_pickle=False) for folder in folders.values()]
        return np.concatenate(every) if every else None

    def _write_tombstones(self, task: str, ids: Ids) -> TombstoneEntry:
        with self.staging() as staged:
            np.save(staged / DELETED, ids, allow_pickle=False)
            identifier, size, files = self._settle(staged, self._tombstones)
        return TombstoneEntry(identifier, task, len(ids), size, files)

    def _publish(self, current: Manifest, manifest: Manifest) -> Manifest:
        """Make a changed manifest the next generation. What it does without stays for an hour: it may be read."""
        for name in current.folder_ids() - manifest.folder_ids():
            for parent in (self._shards, self._tombstones):
                if (parent / name).exists():
                    os.utime(parent / name)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        published = replace(manifest, generation=manifest.generation + 1, created=created)
        replace_text(self.manifest_path, published.dumps())
        return published

    def folders(self) -> list[Path]:
        """Every folder that is there: staged ones, and content, whether a manifest names it or not."""
        parents = (self._staging, self._shards, self._releases, self._tombstones)
        return [folder for parent in parents if parent.exists() for folder in parent.iterdir()]

    def collect_garbage(self) -> None:
        """Remove what writers left behind: staged folders, and content that the manifest does not name, older than an
        hour. Without a manifest nothing goes: one that was lost may come back from a backup.
        """
        if not self.manifest_path.exists():
            return
        with exclusive(self.root / "write.lock"):
            manifest = self.manifest()
            keep = manifest.folder_ids()
            before = time.time() - _ABANDONED_SECONDS
            for folder in self.folders():
                if folder.name not in keep and folder.stat().st_mtime < before and self._drop(folder):
                    shutil.rmtree(folder, ignore_errors=True)

    def _drop(self, folder: Path) -> bool:
        """Forget the rows of an abandoned folder that are elsewhere; whether that is done, and it may go too."""
        try:
            place = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")).get("place", "")
        except (OSError, ValueError, AttributeError):
            return True  # no shard, or none that was ever sealed
        if not place:
            return True
        try:
            if self._remote is None:
                return False
            self._remote.drop(folder.name, place)
        except ShardStoreError:
            return False  # it cannot be reached now, and the folder is what reminds the next sweep
        return True

    def _settle(self, staged: Path, parent: Path) -> tuple[str, int, dict[str, str]]:
        """Sync a staged folder and rename it to its content id; gives that, the size and the files."""
        for path in staged.iterdir():
            sync(path)
        os.utime(staged)  # sweep counts from here, not from when training began
        sync(staged)
        files = hash_files(staged)
        size = sum(path.stat().st_size for path in staged.iterdir())
        target = parent / content_id(files)
        parent.mkdir(exist_ok=True)
        if target.exists() and damage(target, files, size, verify=True):
            os.rename(target, self._staging / uuid.uuid4().hex)  # whole again below
        if target.exists():
            os.utime(target)
            shutil.rmtree(staged)
        else:
            os.rename(staged, target)
        for folder in (parent, self.root, self.root.parent):
            sync(folder)
        return target.name, size, files

    def _with_segment(self, segment: SegmentEntry, manifest: Manifest) -> Manifest:
        """A manifest with further vectors of a task that it has; raises ShardInvalid."""
        name = f"segment {segment.id[:12]} of task {segment.task}"
        if segment.task not in manifest.shards:
            raise ShardInvalid(f"{name}: the task is not published")
        parts = manifest.segments(segment.task)
        pinned = parts[0]
        if (segment.release, segment.fingerprint) != (pinned.release, pinned.fingerprint):
            raise ShardInvalid(
                f"{name}: release {segment.release[:12]} made it, and the task's vectors are of release "
                f"{pinned.release[:12]}; embed with that one"
            )
        self._require_fit(segment, manifest)
        if not pinned.count:
            return replace(manifest, shards={**manifest.shards, segment.task: segment})
        appended = {**manifest.appended, segment.task: (*parts[1:], segment)}
        return replace(manifest, appended=appended)

    def _require_new_task(self, shard: SegmentEntry, manifest: Manifest) -> None:
        """Raises ShardInvalid unless the shard is the first of its task, and its release is known."""
        name = f"shard {shard.id[:12]} of task {shard.task}"
        if shard.release not in manifest.releases:
            raise ShardInvalid(f"{name}: its release {shard.release[:12]} is neither published nor given")
        other = manifest.shards.get(shard.task)
        if other is not None:
            raise ShardInvalid(
                f"{name}: the task already has shard {other.id[:12]}; a published shard is never replaced"
            )

    def _require_fit(self, shard: SegmentEntry, manifest: Manifest) -> None:
        """Raises ShardInvalid unless the shard is whole and goes together with those that are published."""
        name = f"shard {shard.id[:12]} of task {shard.task}"
        self._require_whole_shard(name, shard)
        for other in (part for task in manifest.shards for part in manifest.segments(task)):
            if other.dim != shard.dim:
                raise ShardInvalid(
                    f"{name}: its vectors have {shard.dim} dimensions, those of task {other.task} have {other.dim}"
                )
            # Ranges seldom overlap, so what this costs does not grow with the number of shards.
            if shard.first_id <= other.last_id and other.first_id <= shard.last_id:
                shared = np.intersect1d(self._ids(shard), self._ids(other), assume_unique=True)
                if len(shared):
                    raise ShardInvalid(f"{name}: id {int(shared[0])} belongs to task {other.task} already")

    def _require_whole_shard(self, name: str, shard: SegmentEntry) -> None:
        _require_whole(name, self.shard_folder(shard.id), shard)
        try:
            self.check(shard, "rows")
        except (ShardMissing, ShardCorrupt) as error:
            raise ShardInvalid(
                f"{name} is not in the store as it was written: {error}; write it again"
            ) from error

    def _ids(self, shard: SegmentEntry) -> Ids:
        try:
            ids: Ids = np.load(self.shard_folder(shard.id) / IDS, allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            raise ShardInvalid(
                f"the ids of the shard of task {shard.task} cannot be read ({error}), so no new ones can be compared "
                "with them; restore its folder from a backup"
            ) from error
        return ids


def _require_whole(name: str, folder: Path, entry: SegmentEntry | ReleaseEntry) -> None:
    problem = damage(folder, entry.files, entry.bytes, verify=True)
    if problem:
        raise ShardInvalid(f"{name} is not in the store as it was written: {problem}; write it again")


def _with_moments(wanted: Ids, segments: Sequence[Ids]) -> Ids:
    """``int64``, ascending: those of the wanted ids that segments have, and of wanted videos the moments."""
    every = np.concatenate(segments)
    return np.unique(every[np.isin(every, wanted) | np.isin(video_ids_of(every), wanted)])


def _draft(task: str, release: str, fingerprint: str, dim: int, dtype: str = _DTYPE) -> SegmentEntry:
    """A shard of which only the makers are known."""
    return SegmentEntry(
        "", task, release, fingerprint, 0, dim, first_id=0, last_id=0, bytes=0, files={}, dtype=dtype
    )


def _checked(task: str, ids: Ids, vectors: Vectors) -> tuple[Ids, Vectors]:
    """Ids in ascending order, with their vectors. Raises ShardInvalid."""
    ids, vectors = np.asarray(ids), np.asarray(vectors)
    problem = None
    if not np.issubdtype(ids.dtype, np.integer) or not np.issubdtype(vectors.dtype, np.floating):
        problem = f"ids are {ids.dtype} and vectors {vectors.dtype} instead of int64 and float32"
    elif vectors.ndim != 2 or ids.shape != (len(vectors),):
        problem = f"vectors {list(vectors.shape)} and ids {list(ids.shape)} do not fit together"
    elif not vectors.size:
        problem = "it is empty"
    elif ids.min() < 0:
        problem = f"id {int(ids.min())} is negative"
    if problem:
        raise ShardInvalid(f"shard of task {task}: {problem}")
    order = np.argsort(ids)
    ids, vectors = ids[order].astype(np.int64), np.ascontiguousarray(vectors[order], np.float32)
    twice = ids[1:][ids[1:] == ids[:-1]]
    infinite = ids[~np.isfinite(vectors).all(axis=1)]
    off = ids[~(np.abs(np.linalg.norm(vectors, axis=1) - 1) <= _UNIT)]
    if len(twice):
        problem = f"id {int(twice[0])} comes twice"
    elif len(infinite):
        problem = f"the vector of id {int(infinite[0])} is not finite"
    elif len(off):
        problem = f"the vector of id {int(off[0])} does not have unit length"
    if problem:
        raise ShardInvalid(f"shard of task {task}: {problem}")
    return ids, vectors
