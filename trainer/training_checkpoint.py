"""CheckpointStore: the state of a task's training after an epoch, complete on disk or not there at all."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from index.files.durable_files import sync

__all__ = ["Checkpoint", "CheckpointStore", "run_identity"]

log = logging.getLogger(__name__)

SCHEMA = 1
_DESCRIPTION, _METHOD, _OPTIMISER = "checkpoint.json", "method.safetensors", "optimiser.pt"
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
    """Training after an epoch. Random numbers need no place in it: every epoch seeds them anew.

    Attributes:
        epoch: epochs that are done.
        losses: mean loss of each.
        method: the method's tensors.
        optimiser: the optimiser's ``state_dict``.
    """

    epoch: int
    losses: list[float]
    method: dict[str, Tensor]
    optimiser: dict[str, Any]


def run_identity(*parts: Any) -> str:
    """A short digest of what a training run depends on (release it starts from, settings, examples)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


class CheckpointStore:
    """The checkpoints of one training run.

    Several claims may write into the folder, for a worker that hangs while it saves wakes when another one has long
    taken its task over. So what each writes is named by its claim, and none touches what a later claim has written.

    Args:
        folder: of the task; made when first needed.
        run: identity of the run. A checkpoint of another run, left by an attempt that began from another
            release or with other videos, is not continued.
        claim: grows with every claim on the task: its fencing token.
    """

    def __init__(self, folder: Path, run: str, claim: int = 0) -> None:
        self.folder = folder
        self.run = run
        self.claim = claim

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint durably, then drop the ones before it."""
        final = self.folder / f"epoch-{checkpoint.epoch:05d}.{self.claim}"
        staged = self.folder / f"{final.name}.tmp"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        description = {
            "schema": SCHEMA,
            "run": self.run,
            "epoch": checkpoint.epoch,
            "losses": checkpoint.losses,
        }
        try:
            save_file(_storable(checkpoint.method), staged / _METHOD)
            torch.save(checkpoint.optimiser, staged / _OPTIMISER)
            (staged / _DESCRIPTION).write_text(json.dumps(description))
            for path in (*staged.iterdir(), staged):
                sync(path)
        except Exception:  # each of the three writers has errors of its own
            shutil.rmtree(staged, ignore_errors=True)  # a full disk needs the room
            raise
        shutil.rmtree(final, ignore_errors=True)
        staged.replace(final)
        sync(self.folder)
        for other in self.folder.iterdir():
            if other != final and _claim_of(other) <= self.claim:
                shutil.rmtree(other, ignore_errors=True)

    def load(self) -> Checkpoint | None:
        """The newest complete checkpoint of this run; None when there is none. Unreadable ones are passed over."""
        listed: list[Path] = []
        # Until nothing changes: who was late may put a newer one in the place of the one that is being read.
        while (folders := sorted(self.folder.glob("epoch-*[0-9]"), reverse=True)) != listed:
            if found := self._newest(folders):
                return found
            listed = folders
        return None

    def _newest(self, folders: Iterable[Path]) -> Checkpoint | None:
        for folder in folders:
            try:
                description = json.loads((folder / _DESCRIPTION).read_text())
                if (description["schema"], description["run"]) != (SCHEMA, self.run):
                    continue
                return Checkpoint(
                    epoch=int(description["epoch"]),
                    losses=[float(loss) for loss in description["losses"]],
                    method=load_file(folder / _METHOD),
                    optimiser=torch.load(folder / _OPTIMISER, map_location="cpu", weights_only=True),
                )
            except _UNREADABLE as error:
                log.warning("checkpoint %s of %s cannot be read: %s", folder.name, self.folder.name, error)
        return None

    def clear(self) -> None:
        """Remove the task's checkpoints, those of other runs too."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _claim_of(path: Path) -> int:
    named = re.fullmatch(r"epoch-\d+\.(\d+)(?:\.tmp)?", path.name)
    return int(named[1]) if named else 0


def _storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors refuses tensors that share memory; a copy shares none.
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
