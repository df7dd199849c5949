"""The files of a release: ``release.json``, ``routing.safetensors`` and ``weights.safetensors`` in one folder.

A release holds everything learned up to a task: adapters or a whole tower, prototypes, routing profiles, and for every
task the fingerprint of the encoder that made its shard. It stores only the tasks and routing profiles that it adds; the
others are in its ancestors.

A reader must reproduce the *self-test queries* before it serves the release. Checksums verify the files; these queries
verify that the reader encodes the same query vectors from them as the worker that wrote them: they detect other library
versions, another kernel, or weights that are left out. The texts are constants, since a release is immutable, and
deleting a video must delete its captions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from models.errors import ReleaseError
from models.releases.release_state import (
    Array,
    CalibrationCaption,
    MeasuredFold,
    ParentRelease,
    ReleaseState,
    ReleaseTask,
    TaskLineage,
)
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import VOCABULARY, RoutingProfiles

_SCHEMA = 1
_DESCRIPTION, _WEIGHTS, _ROUTING = "release.json", "weights.safetensors", "routing.safetensors"
_TRAINING = "training.safetensors"
_CALIBRATION, _FOLD, _FOLD_ROUTING = "calibration.json", "fold.safetensors", "routing."
LINEAGE_FILES = (_DESCRIPTION, _ROUTING)  # files that read_lineage needs
QUERY_FILES = (_DESCRIPTION, _WEIGHTS)  # files that read_release needs without profiles
_SELF_TEST = "probes.safetensors"
SELF_TEST_ANCHORS = 5  # stored vectors that each self-test query is scored against
MAX_TESTED_OLDER_TASKS = 24  # tasks that are tested besides the newest one
SELF_TEST_TEXTS = (
    "a person walks along a street",
    "someone cooks in a kitchen",
    "an animal runs across a field",
    "a red car turns left at night",
    "two people talk to each other",
    "water flows over rocks",
    "a close-up of hands at work",
    "a crowd cheers in a stadium",
)


def write_release(folder: Path, state: ReleaseState, *, parent: ParentRelease | None = None) -> None:
    """Write a release's files into an existing empty folder; the caller makes them durable. The tasks of ``parent``
    come first in ``state``, and are not stored again; raise ValueError if the state has no other task.
    """
    earlier = parent.tasks if parent else 0
    if parent is not None and len(state.tasks) <= earlier:
        raise ValueError(f"a release of {len(state.tasks)} tasks adds nothing to a parent of {earlier}")
    new = state.profiles.part(earlier, len(state.profiles))
    profiles: dict[str, Array] = {
        "tokens": new.tokens.astype(np.int32),
        "values": new.values.astype(np.float16),
        "ends": new.ends.astype(np.int64),
        "vocabulary": np.array(new.vocabulary),
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
        **({"is_partial": True} if state.is_partial else {}),
    }
    if state.calibration:
        captions = json.dumps([asdict(caption) for caption in state.calibration])
        (folder / _CALIBRATION).write_text(captions + "\n", encoding="utf-8")
    if (fold := state.fold) is not None:
        arrays = {name: value for name, value in vars(fold).items() if name != "routing"}
        routing = {f"{_FOLD_ROUTING}{name}": np.asarray(array) for name, array in fold.routing.items()}
        save_file(arrays | routing, folder / _FOLD)
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
        tensor_prefixes: Function from the release's kind to the name prefixes of the tensors to read; None reads all
            tensors, and the calibration captions and fold.
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
            uncounted=lineage.uncounted if lineage else frozenset(),
            tensors=_read_arrays(folder, _WEIGHTS, prefixes),
            confidence=confidence,
            calibration=_read_calibration(folder) if tensor_prefixes is None else (),
            fold=read_fold(folder) if tensor_prefixes is None else None,
        )
    except (KeyError, TypeError) as error:
        raise ReleaseError(f"release {folder.name}: {_DESCRIPTION} lacks {error}") from error


def write_training_state(folder: Path, tensors: Mapping[str, Array]) -> None:
    """Write the tensors that :func:`write_release` leaves out of a partial release into a folder of their own."""
    save_file({name: np.asarray(array, order="C") for name, array in tensors.items()}, folder / _TRAINING)


def with_training_state(state: ReleaseState, folder: Path) -> ReleaseState:
    """Complete a partial release with the tensors of :func:`write_training_state`."""
    tensors = {**state.tensors, **_read_arrays(folder, _TRAINING, ("",))}
    return replace(state, tensors=tensors, is_partial=False)


def read_lineage(folder: Path) -> TaskLineage:
    """Read the tasks and routing profiles that a release adds."""
    return _parse_lineage(folder, _read_description(folder))


def read_parent(folder: Path) -> str | None:
    """Read the ID of the release that a release continues; None if it starts a lineage."""
    parent = _read_description(folder).get("before")
    return parent["release"] if parent else None


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
        tasks = _parse_tasks(description)
        uncounted: frozenset[str] = frozenset()
        if profiles.vocabulary != VOCABULARY:  # version 1.0.0 counted the tokens of the text tower
            uncounted = frozenset(task.task_id for task in tasks)
            profiles = RoutingProfiles.from_dense(np.zeros((len(ends), VOCABULARY), np.float32))
        return TaskLineage(tasks, profiles, None if parent is None else ParentRelease(**parent), uncounted)
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


def _read_calibration(folder: Path) -> tuple[CalibrationCaption, ...]:
    """Read a release's calibration captions; empty if it has none."""
    file = folder / _CALIBRATION
    with _reading(folder.name, _CALIBRATION):
        stored: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        return tuple(
            CalibrationCaption(
                **{**c, **{name: tuple(c.get(name, ())) for name in ("ids", "cosines", "others")}}
                | {"retyped": tuple((float(cosine), float(words)) for cosine, words in c.get("retyped", ()))}
            )
            for c in stored
        )


def read_fold(folder: Path) -> MeasuredFold | None:
    """Read a release's fold, None without one; raise ReleaseError if the file is invalid."""
    if not (folder / _FOLD).exists():
        return None
    with _reading(folder.name[:12], _FOLD):
        arrays = load_file(folder / _FOLD)
        names = [name for name in arrays if name.startswith(_FOLD_ROUTING)]
        routing = {name.removeprefix(_FOLD_ROUTING): arrays.pop(name) for name in names}
        return MeasuredFold(**arrays, routing=routing)


def read_fold_queries(folder: Path) -> npt.NDArray[np.float32] | None:
    """Read the query vectors ``[Q, dim]`` of a release's fold, None without one or if its file is invalid."""
    with suppress(ReleaseError):
        fold = read_fold(folder)
        return None if fold is None else fold.query_vectors(fold.videos)
    return None


@contextmanager
def _reading(release: str, file: str) -> Iterator[None]:
    """Turn errors that an invalid file causes into :class:`~models.errors.ReleaseError`."""
    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"release {release}: {file} cannot be read ({error})") from error


@dataclass(frozen=True)
class SelfTest:
    """P pairs of a text and a task, with the vectors and scores that the release's writer computed."""

    mode: str
    texts: list[str]
    tasks: list[str]
    vectors: npt.NDArray[np.float16]  # query vectors, float16 [P, dim]
    # IDs of vectors stored for the task, int64 [P, SELF_TEST_ANCHORS]; −1 if it has fewer. For the release's newest
    # task they are the nearest vectors, best first
    ids: npt.NDArray[np.int64]
    # inner products between these vectors and the query vector, float32 [P, SELF_TEST_ANCHORS]
    scores: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.texts)


def write_self_test(folder: Path, queries: SelfTest) -> None:
    """Write self-test queries into a release's folder. The caller makes them durable."""
    header = json.dumps({"mode": queries.mode, "texts": queries.texts, "tasks": queries.tasks})
    arrays: dict[str, Array] = {"vectors": queries.vectors, "ids": queries.ids, "scores": queries.scores}
    save_file(arrays, folder / _SELF_TEST, metadata={"probes": header})


def read_self_test(folder: Path) -> SelfTest | None:
    """Read a release's self-test queries, None without any; raise ReleaseError if the file is invalid."""
    if not (folder / _SELF_TEST).exists():
        return None
    with _reading(folder.name[:12], _SELF_TEST), safe_open(folder / _SELF_TEST, framework="numpy") as file:
        header = json.loads(file.metadata()["probes"])
        vectors, ids, scores = (file.get_tensor(name) for name in ("vectors", "ids", "scores"))
        self_test = SelfTest(
            header["mode"], list(header["texts"]), list(header["tasks"]), vectors, ids, scores
        )
    lengths = {len(self_test.texts), len(self_test.tasks), len(vectors), len(ids), len(scores)}
    if lengths != {len(self_test)} or vectors.ndim != 2 or ids.ndim != 2 or ids.shape != scores.shape:
        raise ReleaseError(f"release {folder.name[:12]}: the arrays in {_SELF_TEST} have inconsistent shapes")
    return self_test
