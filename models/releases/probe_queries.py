"""Probe queries: what a release must answer before it may take over.

Checksums say that a release is the one that was written. Probes say that whoever loads it makes the same queries of it
as the worker that wrote it: they find other libraries, another kernel, or a reader that leaves out half of the weights.

The texts are ours and the same for every release. Captions would do as well, but a release never changes, and a user
who deletes a video must be able to rely on it that its captions are gone.

In the release they are ``probes.safetensors``, checksummed with its other files. A release without it is an older one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from models.errors import ReleaseError

__all__ = ["ANCHORS", "OLDER_TASKS", "PROBES", "SENTENCES", "Probes", "read_probes", "write_probes"]

PROBES = "probes.safetensors"
ANCHORS = 5  # stored vectors that each probe is scored against
OLDER_TASKS = 24  # that a release is probed in, besides its newest one
SENTENCES = (
    "a person walks along a street",
    "someone cooks in a kitchen",
    "an animal runs across a field",
    "a red car turns left at night",
    "two people talk to each other",
    "water flows over rocks",
    "a close-up of hands at work",
    "a crowd cheers in a stadium",
)


@dataclass(frozen=True)
class Probes:
    """P pairs of a text and a task, and what the writer of the release made of them.

    Attributes:
        mode: query mode.
        texts, tasks: P each; a task is named by its id.
        vectors: ``float16 [P, dim]``, the query vectors.
        ids: ``int64 [P, ANCHORS]``, of stored vectors of the task; −1 where it has fewer. Those of the task that the
            release was made for, the last of its tasks, are the nearest ones, best first.
        scores: ``float32 [P, ANCHORS]``, their inner products with the query.
    """

    mode: str
    texts: list[str]
    tasks: list[str]
    vectors: npt.NDArray[np.float16]
    ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.texts)


def write_probes(folder: Path, probes: Probes) -> None:
    """Write the file of the probes into the folder of a release. Durability is the caller's concern."""
    words = {"probes": json.dumps({"mode": probes.mode, "texts": probes.texts, "tasks": probes.tasks})}
    arrays: dict[str, npt.NDArray[Any]] = {
        "vectors": probes.vectors,
        "ids": probes.ids,
        "scores": probes.scores,
    }
    save_file(arrays, folder / PROBES, metadata=words)


def read_probes(folder: Path) -> Probes | None:
    """The probes in the folder of a release; None where it has none.

    Raises:
        ReleaseError: the file is there and cannot be understood.
    """
    if not (folder / PROBES).exists():
        return None
    try:
        with safe_open(folder / PROBES, framework="numpy") as file:
            words = json.loads(file.metadata()["probes"])
            vectors, ids, scores = (file.get_tensor(name) for name in ("vectors", "ids", "scores"))
        probes = Probes(words["mode"], list(words["texts"]), list(words["tasks"]), vectors, ids, scores)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name[:12]}: {PROBES} cannot be read ({error})") from error
    lengths = {len(probes.texts), len(probes.tasks), len(vectors), len(ids), len(scores)}
    if lengths != {len(probes)} or vectors.ndim != 2 or ids.ndim != 2 or ids.shape != scores.shape:
        raise ReleaseError(f"release {folder.name[:12]}: the parts of {PROBES} do not go together")
    return probes
