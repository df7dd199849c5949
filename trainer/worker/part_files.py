"""Part files: the vectors of a chunk of a task's videos, until the shard is written from all of them.

A part is complete or absent: it is written to a hidden file, synced and renamed. Its name contains the fencing token of
the chunk, and the catalog has its checksum, so a part of a worker that lost its chunk is never read.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import structlog
from safetensors import SafetensorError
from safetensors.numpy import load, save

from index.files.durable_files import sync

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_PREFIX, _ENCODER = "parts-", "encoder"

log = structlog.get_logger(__name__)


class PartFolder:
    """Folder of the parts of a task, and of the video encoder that makes them.

    Args:
        task_folder: Folder of the task's checkpoints.
        run: Identity of the encoder and the videos.
    """

    def __init__(self, task_folder: Path, run: str) -> None:
        self._task_folder = task_folder
        self.path = task_folder / f"{_PREFIX}{run}"

    @property
    def encoder_path(self) -> Path:
        """Folder with the files of the release that embeds; it exists only if it is complete."""
        return self.path / _ENCODER

    def prepare(self, write_encoder: Callable[[Path], None] | None) -> None:
        """Create the folder.

        Args:
            write_encoder: Writes the files of the encoder into an existing empty folder; None: no encoder.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if write_encoder is None or self.encoder_path.exists():
            return
        # A worker that lost its task may write the same encoder at the same time.
        staged = self.path / f".{_ENCODER}-{uuid4().hex}"
        staged.mkdir()
        try:
            write_encoder(staged)
            for path in (*staged.iterdir(), staged):
                sync(path)
            staged.rename(self.encoder_path)
        except OSError:
            if not self.encoder_path.exists():
                raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        sync(self.path)

    def remove_others(self) -> None:
        """Remove the folders of other runs of the task."""
        for other in self._task_folder.glob(f"{_PREFIX}*"):
            if other != self.path:
                shutil.rmtree(other, ignore_errors=True)

    def write(self, number: int, token: int, ids: Ids, vectors: Vectors) -> str:
        """Write a part durably.

        Args:
            number: Number of the chunk.
            token: Fencing token of the chunk's claim.
            ids: Vector ids ``int64 [n]``.
            vectors: Vectors ``float32 [n, dim]``.

        Returns:
            The SHA-256 of the file.

        Raises:
            OSError: The file cannot be written.
        """
        content = save({"ids": ids, "vectors": np.ascontiguousarray(vectors)})
        target = self._part(number, token)
        staged = target.with_name(f".{target.name}")
        try:
            staged.write_bytes(content)
            sync(staged)
            staged.replace(target)
        except OSError:
            staged.unlink(missing_ok=True)  # frees space on a full disk
            raise
        sync(self.path)
        return hashlib.sha256(content).hexdigest()

    def read(self, number: int, token: int, checksum: str | None) -> tuple[Ids, Vectors] | None:
        """Ids and vectors of a part; None if the file is missing or differs from its checksum."""
        try:
            content = self._part(number, token).read_bytes()
            if hashlib.sha256(content).hexdigest() != checksum:
                raise ValueError("its checksum differs")
            tensors = load(content)
            return tensors["ids"], tensors["vectors"]
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            log.warning("part_unreadable", folder=str(self.path.name), part=number, error=str(error))
            return None

    def _part(self, number: int, token: int) -> Path:
        return self.path / f"{number:06d}.{token}.safetensors"
