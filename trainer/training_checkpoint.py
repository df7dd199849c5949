"""Checkpoints: a task's training state after an epoch, on disk either completely or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import pickle
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from index.files.durable_files import find_damage, hash_files, sync
from trainer.errors import CheckpointNotWritten

log = structlog.get_logger(__name__)

SCHEMA = 3
_DESCRIPTION_FILE, _METHOD_FILE, _OPTIMIZER_FILE = "checkpoint.json", "method.safetensors", "optimizer.pt"
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    EOFError,
    SafetensorError,
    pickle.UnpicklingError,
)


@dataclass(frozen=True)
class Checkpoint:
    """Training state after an epoch, without random generators, which every epoch seeds."""

    epoch: int  # number of completed epochs
    losses: list[float]  # mean loss of each epoch
    method: dict[str, Tensor]
    optimizer: dict[str, Any]
    micro_batch: int | None = None  # pairs that the towers encoded at once; None: whole batches


def run_identity(*parts: Any) -> str:
    """Digest everything that a run depends on: the release it starts from, settings, training pairs."""
    return _sha256(json.dumps(parts, sort_keys=True, default=str))[:16]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class CheckpointStore:
    """Checkpoints of one training run.

    Several claims may write into the folder: a worker that hangs while saving may resume after another worker has
    claimed its task. File names therefore contain the claim's fencing token, and no claim removes the files of a later
    one.

    Args:
        folder: Folder of the task; created when first needed.
        run: Identity of the run. An attempt that started from another release or with other videos is another run,
            whose checkpoints are not resumed.
        fencing_token: Fencing token of the claim; it grows with every claim on the task.
    """

    def __init__(self, folder: Path, run: str, fencing_token: int = 0) -> None:
        self.folder = folder
        self.run = run
        self.fencing_token = fencing_token

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint durably, and remove earlier ones but the last; raise CheckpointNotWritten for a read-only
        folder or a full disk.
        """
        try:
            self._write(checkpoint)
        except Exception as error:  # JSON, safetensors and torch raise different errors
            problem = _folder_problem(self.folder, checkpoint, error)
            if problem is None:
                raise
            raise problem from error

    def _write(self, checkpoint: Checkpoint) -> None:
        final = self.folder / f"epoch-{checkpoint.epoch:05d}.{self.fencing_token}"
        staged = self.folder / f"{final.name}.tmp"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        try:
            save_file(_storable(checkpoint.method), staged / _METHOD_FILE)
            torch.save(checkpoint.optimizer, staged / _OPTIMIZER_FILE)
            text = json.dumps(
                {
                    "schema": SCHEMA,
                    "run": self.run,
                    "epoch": checkpoint.epoch,
                    "losses": checkpoint.losses,
                    "micro_batch": checkpoint.micro_batch,
                    "files": hash_files(staged),
                }
            )
            (staged / _DESCRIPTION_FILE).write_text(f"{text}\n{_sha256(text)}\n", encoding="utf-8")
            for path in (*staged.iterdir(), staged):
                sync(path)
        except Exception:
            shutil.rmtree(staged, ignore_errors=True)  # frees space on a full disk
            raise
        shutil.rmtree(final, ignore_errors=True)
        staged.replace(final)
        sync(self.folder)
        for other in self.folder.iterdir():
            is_last = re.fullmatch(rf"epoch-{checkpoint.epoch - 1:05d}\.\d+", other.name)
            if other != final and not is_last and _token_of(other) <= self.fencing_token:
                shutil.rmtree(other, ignore_errors=True)

    def load(self) -> Checkpoint | None:
        """Load the newest complete and readable checkpoint of this run, or None."""
        listed: list[Path] = []
        # Repeat until the listing is stable, since another claim may replace a checkpoint while it is read.
        while (folders := sorted(self.folder.glob("epoch-*[0-9]"), reverse=True)) != listed:
            if checkpoint := self._newest(folders):
                return checkpoint
            listed = folders
        return None

    def _newest(self, folders: Iterable[Path]) -> Checkpoint | None:
        for folder in folders:
            try:
                description = _read_description(folder)
                if (description["schema"], description["run"]) != (SCHEMA, self.run):
                    continue
                return Checkpoint(
                    epoch=int(description["epoch"]),
                    losses=[float(loss) for loss in description["losses"]],
                    method=load_file(folder / _METHOD_FILE),
                    optimizer=torch.load(folder / _OPTIMIZER_FILE, map_location="cpu", weights_only=True),
                    micro_batch=description["micro_batch"],
                )
            except _UNREADABLE as error:
                log.warning(
                    "checkpoint_unreadable", checkpoint=folder.name, task=self.folder.name, error=str(error)
                )
        return None

    def clear(self) -> None:
        """Remove the task's checkpoints, including those of other runs."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _folder_problem(folder: Path, checkpoint: Checkpoint, error: Exception) -> CheckpointNotWritten | None:
    """Explain a failed write by the state of the folder or its disk; None if another error caused it."""
    number, text = getattr(error, "errno", None), str(error)
    if number in (errno.EROFS, errno.EACCES) or "Read-only file system" in text:
        state = "denies access to this process" if number == errno.EACCES else "is read-only"
        return CheckpointNotWritten(
            f"The training cannot store its checkpoint: the folder {folder} {state}",
            "Make the folder writable for the worker's user",
        )
    needed = _stored_bytes([checkpoint.method, checkpoint.optimizer])
    free = _free_bytes(folder)
    # Tensor writers report a full disk in their own words.
    if number != errno.ENOSPC and "No space left" not in text and (number is not None or free >= needed):
        return None
    return CheckpointNotWritten(
        f"The training cannot store its checkpoint: the disk of the folder {folder} is full; about {needed:,} bytes "
        f"are needed, and {free:,} bytes are free",
        "Free up space on this disk",
    )


def _stored_bytes(state: Any) -> int:
    """Sum the bytes of all tensors in nested containers."""
    if isinstance(state, Tensor):
        return state.nbytes
    values = (
        state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    )
    return sum(map(_stored_bytes, values))


def _free_bytes(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def is_intact_checkpoint(folder: Path) -> bool:
    """Check whether a checkpoint's files are as they were written."""
    try:
        _read_description(folder)
    except _UNREADABLE:
        return False
    return True


def _read_description(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's description; raise ValueError if it or another file of the checkpoint was altered."""
    path = folder / _DESCRIPTION_FILE
    if path.exists() and not path.is_file():
        raise ValueError(f"{_DESCRIPTION_FILE} is not a regular file")  # a pipe would block
    text, _, checksum = path.read_text(encoding="utf-8").partition("\n")
    if checksum != f"{_sha256(text)}\n":
        raise ValueError(f"{_DESCRIPTION_FILE} was altered")
    description: dict[str, Any] = json.loads(text)
    if problem := find_damage(folder, description["files"], None, verify=True):
        raise ValueError(problem)
    return description


def _token_of(path: Path) -> int:
    match = re.fullmatch(r"epoch-\d+\.(\d+)(?:\.tmp)?", path.name)
    return int(match[1]) if match else 0


def _storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    stored, storages = {}, set[int]()
    for name, tensor in tensors.items():
        stored[name] = tensor.detach().cpu().contiguous()
        storage = stored[name].untyped_storage().data_ptr()
        if storage in storages:  # safetensors rejects tensors that share memory
            stored[name] = stored[name].clone()
        storages.add(storage)
    return stored
