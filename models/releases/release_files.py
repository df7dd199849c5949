"""The release on disk: ``release.json``, ``routing.safetensors`` and ``weights.safetensors`` in one folder.

A release is everything that was learned up to a task: adapters or a whole tower, prototypes, routing
profiles, and for every task the fingerprint of the encoder that made its shard. Of tasks and profiles it keeps those
that it learned itself; what came before is in the releases that it goes on from (:mod:`models.releases.lineage`).

Schema 2 kept tasks and profiles of all earlier releases too, the profiles among the weights; schema 1 kept these with
all their zeros. Both are read as releases before which there is nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from models.backbones.loading import Backbone
from models.errors import ReleaseError
from models.releases.lineage import Before, Learned, ReleaseTask
from models.routing.confidence_model import Confidence
from models.routing.token_profiles import Profiles

__all__ = [
    "LEARNED_FILES",
    "Kind",
    "ReleaseState",
    "ReleaseTask",
    "read_learned",
    "read_release",
    "under",
    "video_fingerprint",
    "write_release",
]

SCHEMA = 3
_DENSE_PROFILES, _ALL_PROFILES = 1, 2
Kind = Literal["frozen", "tower", "mapped", "tame", "low_rank", "moe"]
_DESCRIPTION, _WEIGHTS, _ROUTING = "release.json", "weights.safetensors", "routing.safetensors"
LEARNED_FILES = (_DESCRIPTION, _ROUTING)  # all that read_learned reads, since schema 3
_AMONG_WEIGHTS = "routing."  # how names of profiles began until then
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
        profiles: the words of each task's training captions (``models.routing.router``).
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


def write_release(folder: Path, state: ReleaseState, *, before: Before | None = None) -> None:
    """Write the files of a release into an existing empty folder. Durability is the caller's concern.

    Args:
        before: the release whose tasks are the first of this one, with the same words; they are not written again.

    Raises:
        ValueError: the state holds no task that was not there before.
    """
    earlier = before.tasks if before else 0
    if before is not None and len(state.tasks) <= earlier:
        raise ValueError(f"a release of {len(state.tasks)} tasks adds nothing to {earlier}")
    own = state.profiles.after(earlier)
    profiles = {
        "tokens": torch.from_numpy(own.tokens.astype(np.int32)),
        "values": torch.from_numpy(own.values).half(),
        "ends": torch.from_numpy(own.ends.astype(np.int64)),
        "vocabulary": torch.tensor(own.vocabulary),
    }
    save_file(profiles, folder / _ROUTING)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    save_file(tensors, folder / _WEIGHTS)
    description = {
        "schema": SCHEMA,
        "method": state.method,
        "kind": state.kind,
        "backbone": state.backbone,
        "backbone_fingerprint": state.backbone_fingerprint,
        "fingerprint": state.fingerprint,
        "frames": state.frames,
        "before": vars(before) if before else None,
        "tasks": [vars(task) for task in state.tasks[earlier:]],
        "config": state.config,
    }
    if state.confidence is not None:
        description["confidence"] = state.confidence.to_json()
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=2, sort_keys=True) + "\n")


def read_release(
    folder: Path,
    *,
    for_queries: bool = False,
    for_videos: bool = False,
    profiles: bool = True,
    learned: Callable[[str], Learned] | None = None,
) -> ReleaseState:
    """The release in a folder.

    Args:
        for_queries: leave out the tensors that only training and embedding need.
        for_videos: leave out those that only training and queries need.
        profiles: read the routing profiles too, and the tasks before its own; without them there are none in the state.
        learned: gives what the release with an id has learned itself, for those before this one.

    Raises:
        ReleaseError: a file is missing, unreadable, of a newer schema, or lacks a field; names the file. Or what
            comes before it is not at hand, or not what it went on from.
    """
    description = _describe(folder)
    whole = _learned(folder, description) if profiles else None
    if whole is not None and whole.before is not None:
        if learned is None:
            raise ReleaseError(
                f"release {folder.name} goes on from release {whole.before.release}, which is not at hand"
            )
        whole = whole.whole(learned)
    needed = _FOR_QUERIES if for_queries else _FOR_VIDEOS if for_videos else None
    begins = ("",) if needed is None else needed[description["kind"]]
    tensors = _tensors(folder, _WEIGHTS, begins)
    tensors = {name: t for name, t in tensors.items() if not name.startswith(_AMONG_WEIGHTS)}
    calibrated = description.pop("confidence", None)
    try:
        confidence = None if calibrated is None else Confidence.from_json(calibrated)
    except (KeyError, TypeError, ValueError) as error:
        raise ReleaseError(f"release {folder.name}: its calibration cannot be used ({error})") from error
    own = {"schema", "before", "tasks"}
    try:
        return ReleaseState(
            **{name: value for name, value in description.items() if name not in own},
            tasks=list(whole.tasks if whole else _own_tasks(description)),
            profiles=whole.profiles if whole else Profiles.of(np.empty((0, 0))),
            tensors=tensors,
            confidence=confidence,
        )
    except (KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} lacks {error}") from error


def read_learned(folder: Path) -> Learned:
    """What the release in a folder has learned itself.

    Raises:
        ReleaseError: as :func:`read_release`.
    """
    return _learned(folder, _describe(folder))


def _describe(folder: Path) -> dict[str, Any]:
    """``release.json``, as far as every reader needs it."""
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
    except FileNotFoundError as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} is not JSON ({error})") from error
    if not isinstance(description, dict):
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} does not describe a release")
    schema = description.get("schema")
    if schema not in (_DENSE_PROFILES, _ALL_PROFILES, SCHEMA):
        raise ReleaseError(
            f"release {folder.name}: schema {schema} is not one that this version reads (up to {SCHEMA}); "
            "use the version of Cinestrata that wrote it"
        )
    if description.get("kind") not in get_args(Kind):
        raise ReleaseError(f"release {folder.name}: unknown kind {description.get('kind')!r}")
    return description


def _own_tasks(description: Mapping[str, Any]) -> tuple[ReleaseTask, ...]:
    return tuple(ReleaseTask(**task) for task in description["tasks"])


def _learned(folder: Path, description: Mapping[str, Any]) -> Learned:
    among_weights = description["schema"] < SCHEMA
    file, begins = (_WEIGHTS, _AMONG_WEIGHTS) if among_weights else (_ROUTING, "")
    read = _tensors(folder, file, (begins,))
    before = description.get("before")
    try:
        routing = {name.removeprefix(begins): tensor.numpy() for name, tensor in read.items()}
        if description["schema"] == _DENSE_PROFILES:
            profiles = Profiles.of(routing["profiles"])
        else:
            tokens, values, ends = (routing[name] for name in ("tokens", "values", "ends"))
            profiles = Profiles(tokens, values.astype(np.float32), ends, int(routing["vocabulary"]))
        if not np.isfinite(profiles.values).all():
            raise ValueError("one of their numbers is not finite")
        return Learned(_own_tasks(description), profiles, None if before is None else Before(**before))
    except (KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} or {file} lacks {error}") from error
    except ValueError as error:
        raise ReleaseError(f"release {folder.name}: its routing profiles are damaged: {error}") from error


def _tensors(folder: Path, file: str, begins: tuple[str, ...]) -> dict[str, Tensor]:
    """The tensors of a file whose names begin so."""
    try:
        with safe_open(folder / file, framework="pt") as opened:
            names = [name for name in opened.keys() if name.startswith(begins)]  # noqa: SIM118
            return {name: opened.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise ReleaseError(f"release {folder.name}: {file} is missing") from error
    except SafetensorError as error:
        raise ReleaseError(f"release {folder.name}: {file} cannot be read ({error})") from error
