"""Writing: content folders first, then one manifest whose replacement makes them visible."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from index.durable import exclusive, hash_files, replace_text, sync
from index.errors import ManifestError, ShardRefused
from index.format import SCHEMA, Manifest, ReleaseEntry, ShardEntry, content_id
from index.shard import DESCRIPTION, IDS, VECTORS

__all__ = ["ShardStore"]

_UNIT = 1e-3  # how far a row's length may be from one
_ABANDONED_SECONDS = 3600


class ShardStore:
    """A folder of shards and releases.

    One process writes (the learning worker), any number read. Shard and release folders are immutable; only
    ``manifest.json`` is ever replaced.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (self.root, self._shards, self._releases, self._staging):
            folder.mkdir(parents=True, exist_ok=True)

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
    def _staging(self) -> Path:
        return self.root / "tmp"

    def shard_folder(self, shard: str) -> Path:
        """Folder of a shard by id."""
        return self._shards / shard

    def release_folder(self, release: str) -> Path:
        """Folder of a release by id."""
        return self._releases / release

    def stage(self) -> Path:
        """A fresh temporary folder on the store's file system."""
        return Path(tempfile.mkdtemp(dir=self._staging))

    def write_shard(
        self,
        *,
        task: str,
        release: str,
        fingerprint: str,
        ids: npt.NDArray[np.int64],
        vectors: npt.NDArray[np.float32],
    ) -> ShardEntry:
        """Write a shard durably. It stays invisible until published.

        Args:
            ids: ``int64 [n]``, non-negative, each once.
            vectors: ``float32 [n, dim]``, rows of unit length.

        Raises:
            ShardRefused: ids or vectors break these rules; names which.
        """
        ids, vectors = _checked(task, ids, vectors)
        staged = self.stage()
        flat = faiss.IndexFlatIP(vectors.shape[1])
        flat.add(vectors)
        faiss.write_index(flat, str(staged / VECTORS))
        np.save(staged / IDS, ids, allow_pickle=False)
        description = {
            "schema": SCHEMA,
            "task": task,
            "release": release,
            "fingerprint": fingerprint,
            "count": len(ids),
            "dim": vectors.shape[1],
            "metric": "inner_product",
            "dtype": "float32",
        }
        (staged / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        shard, size, files = self._settle(staged, self._shards)
        return ShardEntry(shard, task, release, fingerprint, len(ids), vectors.shape[1], size, files)

    def adopt_release(self, staged: Path) -> ReleaseEntry:
        """Take over a staged folder as a release. It stays invisible until published."""
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
            raise ManifestError("manifest.json is not text; restore it from a snapshot") from error

    def publish(self, *, release: ReleaseEntry, shards: Sequence[ShardEntry]) -> Manifest:
        """Make a release current, and shards visible with it. The publish point of the whole store.

        Publishing what is already there changes nothing, so a writer that died may try again.

        Raises:
            ShardRefused: a task has another shard already; shards are never replaced.
        """
        with exclusive(self.root / "write.lock"):
            current = self.manifest()
            for shard in shards:
                other = current.shards.get(shard.task)
                if other is not None and other != shard:
                    raise ShardRefused(
                        f"task {shard.task} already has shard {other.id[:12]}; a published shard is never replaced"
                    )
            target = replace(
                current,
                release=release.id,
                releases={**current.releases, release.id: release},
                shards={**current.shards, **{shard.task: shard for shard in shards}},
            )
            if target == current:
                return current
            published = replace(target, generation=current.generation + 1)
            replace_text(self.manifest_path, published.dumps())
            return published

    def sweep(self) -> None:
        """Remove what writers left behind: temporary folders, and content that no manifest names, older than an hour."""
        manifest = self.manifest()
        keep = {shard.id for shard in manifest.shards.values()} | set(manifest.releases)
        before = time.time() - _ABANDONED_SECONDS
        for parent in (self._staging, self._shards, self._releases):
            for folder in parent.iterdir():
                if folder.name not in keep and folder.stat().st_mtime < before:
                    shutil.rmtree(folder, ignore_errors=True)

    def _settle(self, staged: Path, parent: Path) -> tuple[str, int, dict[str, str]]:
        """Sync a staged folder and rename it to its content id."""
        for path in staged.iterdir():
            sync(path)
        sync(staged)
        files = hash_files(staged)
        size = sum(path.stat().st_size for path in staged.iterdir())
        identifier = content_id(files)
        target = parent / identifier
        if target.exists():
            shutil.rmtree(staged)
        else:
            os.rename(staged, target)
            sync(parent)
        return identifier, size, files


def _checked(
    task: str, ids: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    vectors = np.ascontiguousarray(vectors, np.float32)
    ids = np.asarray(ids, np.int64)
    problem = None
    if vectors.ndim != 2 or ids.shape != (len(vectors),) or not len(ids):
        problem = f"{vectors.shape} vectors and {ids.shape} ids do not fit together"
    elif len(np.unique(ids)) != len(ids) or ids.min() < 0:
        problem = "ids must be non-negative, each once"
    elif not np.isfinite(vectors).all():
        problem = f"the vector of id {int(ids[~np.isfinite(vectors).all(axis=1)][0])} is not finite"
    elif (np.abs(np.linalg.norm(vectors, axis=1) - 1) > _UNIT).any():
        problem = "vectors must have unit length"
    if problem:
        raise ShardRefused(f"shard of task {task}: {problem}")
    return ids, vectors
