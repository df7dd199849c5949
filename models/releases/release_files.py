"""The files of a release: ``release.json``, ``routing.safetensors`` and ``weights.safetensors`` in one folder.

A release holds everything learned up to a task: adapters or a whole tower, prototypes, routing profiles, and for every
task the fingerprint of the encoder that made its shard. It stores only the tasks and routing profiles that it adds; the
others are in its ancestors (:mod:`models.releases.release_lineage`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from models.errors import ReleaseError
from models.releases.measured_fold import read_fold, write_fold
from models.releases.release_lineage import ParentRelease, ReleaseTask, TaskLineage
from models.releases.release_state import Array, ReleaseState, read_calibration, write_calibration
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import RoutingProfiles

_SCHEMA = 1
_DESCRIPTION, _WEIGHTS, _ROUTING = "release.json", "weights.safetensors", "routing.safetensors"
LINEAGE_FILES = (_DESCRIPTION, _ROUTING)  # files that read_lineage needs


def write_release(folder: Path, state: ReleaseState, *, parent: ParentRelease | None = None) -> None:
    """Write a release's files into an existing empty folder. The caller makes them durable.

    Args:
        parent: Release whose tasks come first in ``state``, with the same routing profiles; they are not stored again.

    Raises:
        ValueError: The state has no task that the parent does not have.
    """
    earlier = parent.tasks if parent else 0
    if parent is not None and len(state.tasks) <= earlier:
        raise ValueError(f"a release of {len(state.tasks)} tasks adds nothing to a parent of {earlier}")
    own = state.profiles.without_first(earlier)
    profiles: dict[str, Array] = {
        "tokens": own.tokens.astype(np.int32),
        "values": own.values.astype(np.float16),
        "ends": own.ends.astype(np.int64),
        "vocabulary": np.array(own.vocabulary),
    }
    save_file(profiles, folder / _ROUTING)
    # safetensors writes an array's memory as it is, so an array in another order would come out transposed.
    weights = {name: np.asarray(array, order="C") for name, array in state.tensors.items()}
    save_file(weights, folder / _WEIGHTS)
    description = {
        "schema": _SCHEMA,
        "method": state.method,
        "kind": state.kind,
        "backbone": state.backbone,
        "backbone_fingerprint": state.backbone_fingerprint,
        "fingerprint": state.fingerprint,
        "frames": state.frames,
        "before": vars(parent) if parent else None,
        "tasks": [vars(task) for task in state.tasks[earlier:]],
        "config": state.config,
    }
    if state.calibration:
        write_calibration(folder, state.calibration)
    if state.fold is not None:
        write_fold(folder, state.fold)
    if state.confidence is not None:
        description["confidence"] = state.confidence.to_json()
    (folder / _DESCRIPTION).write_text(json.dumps(description, indent=2, sort_keys=True) + "\n")


def read_release(
    folder: Path,
    *,
    tensor_prefixes: Callable[[str], tuple[str, ...]] | None = None,
    profiles: bool = True,
    read_parent: Callable[[str], TaskLineage] | None = None,
) -> ReleaseState:
    """Read a release.

    :mod:`models.encoders.encoder_registry` has functions that read only one encoder's tensors.

    Args:
        tensor_prefixes: Function from the release's kind to the name prefixes of the tensors to read; None reads all.
        profiles: Whether to read the routing profiles and the ancestors' tasks. If false, the state has no profiles and
            only the tasks that the release adds.
        read_parent: Function from an ancestor's ID to the tasks that it adds.

    Raises:
        ReleaseError: A file is missing, unreadable, of another schema, or lacks a field (the message names the file);
            or an ancestor is unavailable or does not match.
    """
    description = _read_description(folder)
    lineage = _parse_lineage(folder, description) if profiles else None
    if lineage is not None and lineage.parent is not None:
        if read_parent is None:
            raise ReleaseError(
                f"release {folder.name} continues release {lineage.parent.release}, which is not available"
            )
        lineage = lineage.resolve(read_parent)
    try:
        prefixes = ("",) if tensor_prefixes is None else tensor_prefixes(description["kind"])
    except ReleaseError as error:
        raise ReleaseError(f"release {folder.name}: {error}") from error
    stored_confidence = description.pop("confidence", None)
    try:
        confidence = None if stored_confidence is None else ConfidenceModel.from_json(stored_confidence)
    except (KeyError, TypeError, ValueError) as error:
        raise ReleaseError(f"release {folder.name}: the calibration is invalid ({error})") from error
    lineage_fields = {"schema", "before", "tasks"}
    try:
        return ReleaseState(
            **{name: value for name, value in description.items() if name not in lineage_fields},
            tasks=list(lineage.tasks if lineage else _parse_tasks(description)),
            profiles=lineage.profiles if lineage else RoutingProfiles.from_dense(np.empty((0, 0))),
            tensors=_read_arrays(folder, _WEIGHTS, prefixes),
            confidence=confidence,
            calibration=read_calibration(folder) if tensor_prefixes is None else (),
            fold=read_fold(folder) if tensor_prefixes is None else None,
        )
    except (KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} lacks {error}") from error


def read_lineage(folder: Path) -> TaskLineage:
    """Read the tasks and routing profiles that a release adds."""
    return _parse_lineage(folder, _read_description(folder))


def _read_description(folder: Path) -> dict[str, Any]:
    """Read ``release.json`` and check what every reader relies on."""
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
    except FileNotFoundError as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} is not JSON ({error})") from error
    if not isinstance(description, dict):
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} is not a JSON object")
    schema = description.get("schema")
    if schema != _SCHEMA:
        raise ReleaseError(
            f"release {folder.name} has schema {schema}, but this version reads {_SCHEMA}: "
            "use the version that wrote it"
        )
    if not isinstance(description.get("kind"), str):
        raise ReleaseError(f"release {folder.name}: kind {description.get('kind')!r} is not a string")
    return description


def _parse_tasks(description: Mapping[str, Any]) -> tuple[ReleaseTask, ...]:
    return tuple(ReleaseTask(**task) for task in description["tasks"])


def _parse_lineage(folder: Path, description: Mapping[str, Any]) -> TaskLineage:
    routing = _read_arrays(folder, _ROUTING, ("",))
    try:
        parent = description["before"]
        tokens, values, ends = (routing[name] for name in ("tokens", "values", "ends"))
        profiles = RoutingProfiles(tokens, values.astype(np.float32), ends, int(routing["vocabulary"]))
        if not np.isfinite(profiles.values).all():
            raise ValueError("a value is not finite")
        return TaskLineage(
            _parse_tasks(description), profiles, None if parent is None else ParentRelease(**parent)
        )
    except (KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} or {_ROUTING} lacks {error}") from error
    except ValueError as error:
        raise ReleaseError(f"release {folder.name}: the lineage is invalid: {error}") from error


def _read_arrays(folder: Path, file: str, prefixes: tuple[str, ...]) -> dict[str, Array]:
    """Read the arrays whose names start with one of the prefixes."""
    try:
        with safe_open(folder / file, framework="numpy") as opened:
            names = [name for name in opened.keys() if name.startswith(prefixes)]  # noqa: SIM118
            return {name: opened.get_tensor(name) for name in names}
    except FileNotFoundError as error:
        raise ReleaseError(f"release {folder.name}: {file} is missing") from error
    except (SafetensorError, TypeError) as error:  # TypeError: a data type that numpy lacks
        raise ReleaseError(f"release {folder.name}: {file} cannot be read ({error})") from error
