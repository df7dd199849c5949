"""Probe queries, which a reader of a release must reproduce before it serves the release.

Checksums verify a release's files. Probe queries verify that the reader encodes the same query vectors from them as the
worker that wrote them: they detect other library versions, another kernel, or weights that are left out. The texts are
constants, since a release is immutable, and deleting a video must delete its captions.
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

PROBE_FILE = "probes.safetensors"
PROBE_ANCHORS = 5  # stored vectors that each probe query is scored against
MAX_PROBED_OLDER_TASKS = 24  # tasks that are probed besides the newest one
PROBE_TEXTS = (
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
class ProbeQueries:
    """P pairs of a text and a task, with the vectors and scores that the release's writer computed.

    Attributes:
        vectors: Query vectors, ``float16 [P, dim]``.
        ids: IDs of vectors stored for the task, ``int64 [P, PROBE_ANCHORS]``; −1 if it has fewer. For the release's
            newest task they are the nearest vectors, best first.
        scores: Inner products between these vectors and the query vector, ``float32 [P, PROBE_ANCHORS]``.
    """

    mode: str
    texts: list[str]
    tasks: list[str]
    vectors: npt.NDArray[np.float16]
    ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.texts)


def write_probes(folder: Path, probes: ProbeQueries) -> None:
    """Write probe queries into a release's folder. The caller makes them durable."""
    header = json.dumps({"mode": probes.mode, "texts": probes.texts, "tasks": probes.tasks})
    arrays: dict[str, npt.NDArray[Any]] = {
        "vectors": probes.vectors,
        "ids": probes.ids,
        "scores": probes.scores,
    }
    save_file(arrays, folder / PROBE_FILE, metadata={"probes": header})


def read_probes(folder: Path) -> ProbeQueries | None:
    """Read a release's probe queries; None if it has none.

    Raises:
        ReleaseError: The file exists but is invalid.
    """
    if not (folder / PROBE_FILE).exists():
        return None
    try:
        with safe_open(folder / PROBE_FILE, framework="numpy") as file:
            header = json.loads(file.metadata()["probes"])
            vectors, ids, scores = (file.get_tensor(name) for name in ("vectors", "ids", "scores"))
        probes = ProbeQueries(
            header["mode"], list(header["texts"]), list(header["tasks"]), vectors, ids, scores
        )
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name[:12]}: {PROBE_FILE} cannot be read ({error})") from error
    lengths = {len(probes.texts), len(probes.tasks), len(vectors), len(ids), len(scores)}
    if lengths != {len(probes)} or vectors.ndim != 2 or ids.ndim != 2 or ids.shape != scores.shape:
        raise ReleaseError(f"release {folder.name[:12]}: the arrays in {PROBE_FILE} have inconsistent shapes")
    return probes
