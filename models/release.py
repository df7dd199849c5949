"""The release on disk: ``release.json`` and ``weights.safetensors`` in one folder.

A release is everything that was learned up to a task: adapters or a whole tower, prototypes, routing
profiles, and for every task the fingerprint of the encoder that made its shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.backbone import Backbone
from models.confidence import Confidence
from models.errors import ReleaseError
from models.profiles import Profiles

__all__ = [
    "Kind",
    "ReleaseState",
    "ReleaseTask",
    "read_release",
    "under",
    "video_fingerprint",
    "write_release",
]

SCHEMA = 2
_DENSE_PROFILES = 1  # the schema that kept them with all their zeros
Kind = Literal["frozen", "tower", "mapped", "tame", "low_rank", "moe"]
_DESCRIPTION, _WEIGHTS, _ROUTING = "release.json", "weights.safetensors", "routing."
# What queries are encoded with: names of tensors by how they begin. A release also keeps what only training needs.
_FOR_QUERIES: dict[str, tuple[str, ...]] = {
    "frozen": (),
    "tower": ("clip.",),
    "mapped": ("clip.", "maps", "shifts"),
    "tame": ("tame.",),
    "low_rank": ("text.",),
    "moe": ("moe.text.", "moe.selector.", "moe.tasks"),
}
# What videos are embedded with, likewise.
_FOR_VIDEOS: dict[str, tuple[str, ...]] = {
    "frozen": (),
    "tower": ("clip.visual.", "proxies."),
    "mapped": ("clip.visual.", "proxies."),
    "tame": ("ffa.",),
    "low_rank": ("image.", "ffa."),
    "moe": ("moe.visual.", "moe.tasks"),
}


@dataclass(frozen=True)
class ReleaseTask:
    """A task that a release has learned (or indexed).

    Attributes:
        task_id: id in the catalog.
        name: as the user gave it.
        fingerprint: of the video encoder that made the task's shard.
    """

    task_id: str
    name: str
    fingerprint: str


@dataclass(frozen=True)
class ReleaseState:
    """The learned state after a task.

    Attributes:
        method: name of the method that learned it.
        kind: what conditions a query: ``frozen`` nothing, ``tower`` a fine-tuned text tower, ``mapped`` one
            with a map into the space of every task, ``tame`` TAME, ``low_rank`` small updates of the text tower,
            ``moe`` MoE-Adapters.
        backbone: name of the backbone.
        backbone_fingerprint: of its weights and preprocessing.
        fingerprint: of the video encoder of this release.
        frames: frames per video.
        tasks: learned tasks, in order; position t−1 is task t.
        config: the method's settings.
        tensors: adapters or towers, by name.
        profiles: the words of each task's training captions (``models.routing``).
        confidence: how sure its searches are; None where it was not calibrated.
    """

    method: str
    kind: Kind
    backbone: str
    backbone_fingerprint: str
    fingerprint: str
    frames: int
    tasks: list[ReleaseTask]
    config: dict[str, Any]
    profiles: Profiles
    tensors: dict[str, Tensor] = field(default_factory=dict)
    confidence: Confidence | None = None

    def for_queries(self) -> ReleaseState:
        """Without the tensors that only training and embedding need."""
        begins = _FOR_QUERIES[self.kind]
        return replace(self, tensors={n: t for n, t in self.tensors.items() if n.startswith(begins)})

    def for_videos(self) -> ReleaseState:
        """Without the tensors that only training and queries need."""
        begins = _FOR_VIDEOS[self.kind]
        return replace(self, tensors={n: t for n, t in self.tensors.items() if n.startswith(begins)})


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def video_fingerprint(backbone: Backbone, frames: int, tensors: Mapping[str, Tensor]) -> str:
    """Identity of a video encoder: backbone, preprocessing, frames per video, and its own weights.

    Two encoders with one fingerprint give the same vectors; vectors of two fingerprints are never compared.
    """
    digest = hashlib.sha256(f"{backbone.fingerprint}:{frames}:{backbone.dim}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_release(folder: Path, state: ReleaseState) -> None:
    """Write the two files of a release into an existing empty folder. Durability is the caller's concern."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    profiles = {
        f"{_ROUTING}tokens": torch.from_numpy(state.profiles.tokens.astype(np.int32)),
        f"{_ROUTING}values": torch.from_numpy(state.profiles.values).half(),
        f"{_ROUTING}ends": torch.from_numpy(state.profiles.ends.astype(np.int64)),
        f"{_ROUTING}vocabulary": torch.tensor(state.profiles.vocabulary),
    }
    save_file(tensors | profiles, folder / _WEIGHTS)
    description = {
        "schema": SCHEMA,
        "method": state.method,
        "kind": state.kind,
        "backbone": state.backbone,
        "backbone_fingerprint": state.backbone_fingerprint,
        "fingerprint": state.fingerprint,
        "frames": state.frames,
        "tasks": [vars(task) for task in state.tasks],
        "config": state.config,
    }
    if state.confidence is not None:
        description["confidence"] = state.confidence.to_json()
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=2, sort_keys=True) + "\n")


def read_release(
    folder: Path, *, for_queries: bool = False, for_videos: bool = False, profiles: bool = True
) -> ReleaseState:
    """The release in a folder.

    Args:
        for_queries: leave out the tensors that only training and embedding need.
        for_videos: leave out those that only training and queries need.
        profiles: read the routing profiles too, which are as large as the library has domains; without them there are
            none in the state.

    Raises:
        ReleaseError: a file is missing, unreadable, of a newer schema, or lacks a field; names the file.
    """
    path = folder / _DESCRIPTION
    try:
        description = json.loads(path.read_text())
        needed = _FOR_QUERIES if for_queries else _FOR_VIDEOS if for_videos else None
        begins = ("",) if needed is None else (_ROUTING, *needed.get(description.get("kind"), ()))
        with safe_open(folder / _WEIGHTS, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(begins)]  # noqa: SIM118
            wanted = [name for name in names if profiles or not name.startswith(_ROUTING)]
            tensors = {name: file.get_tensor(name) for name in wanted}
    except FileNotFoundError as error:
        missing = _WEIGHTS if path.exists() else _DESCRIPTION
        raise ReleaseError(f"release {folder.name}: {missing} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} is not JSON ({error})") from error
    except SafetensorError as error:
        raise ReleaseError(f"release {folder.name}: {_WEIGHTS} cannot be read ({error})") from error
    schema = description.pop("schema", None)
    if schema not in (_DENSE_PROFILES, SCHEMA):
        raise ReleaseError(
            f"release {folder.name}: schema {schema} is not one that this version reads (up to {SCHEMA}); "
            "use the version of Cinestrata that wrote it"
        )
    if description.get("kind") not in get_args(Kind):
        raise ReleaseError(f"release {folder.name}: unknown kind {description.get('kind')!r}")
    calibrated = description.pop("confidence", None)
    try:
        confidence = None if calibrated is None else Confidence.from_json(calibrated)
    except (KeyError, TypeError, ValueError) as error:
        raise ReleaseError(f"release {folder.name}: its calibration cannot be used ({error})") from error
    try:
        tasks = [ReleaseTask(**task) for task in description.pop("tasks")]
        routing = {
            n.removeprefix(_ROUTING): tensors.pop(n).numpy() for n in [*tensors] if n.startswith(_ROUTING)
        }
        if not profiles:
            read = Profiles.of(np.empty((0, 0)))
        elif schema == _DENSE_PROFILES:
            read = Profiles.of(routing["profiles"])
        else:
            tokens, values, ends = (routing[name] for name in ("tokens", "values", "ends"))
            read = Profiles(tokens, values.astype(np.float32), ends, int(routing["vocabulary"]))
        return ReleaseState(**description, tasks=tasks, profiles=read, tensors=tensors, confidence=confidence)
    except (KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} or {_WEIGHTS} lacks {error}") from error
    except ValueError as error:
        raise ReleaseError(f"release {folder.name}: its routing profiles are damaged: {error}") from error
