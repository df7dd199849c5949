"""The lineage of releases: their size, reading along it, and inconsistent ancestors that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.encoders.encoder_registry import read_query_release
from models.errors import ReleaseError
from models.releases.release_files import LINEAGE_FILES, read_lineage, read_release, write_release
from models.releases.release_state import Array, ParentRelease, ReleaseState, ReleaseTask
from models.routing.routing_profiles import RoutingProfiles

VOCABULARY, TOKENS_PER_TASK = 500, 20


def _profiles(tasks: int) -> RoutingProfiles:
    """Return the profiles of equal size with values that half precision represents exactly; the third task
    is silent.
    """
    rng = np.random.default_rng(0)
    rows = np.zeros((tasks, VOCABULARY), np.float32)
    for number, row in enumerate(rows):
        if number != 2:
            row[rng.choice(VOCABULARY, TOKENS_PER_TASK, replace=False)] = (
                rng.integers(1, 2000, TOKENS_PER_TASK) / 256
            )
    return RoutingProfiles.from_dense(rows)


def _state(tasks: int) -> ReleaseState:
    learned = [ReleaseTask(f"tsk_{n:04}", f"domain {n:04}", f"{n:064x}") for n in range(tasks)]
    rows = _profiles(12).to_dense([n % 12 for n in range(tasks)])
    return ReleaseState(
        method="strata",
        kind="low_rank",
        backbone="tiny",
        backbone_fingerprint="b" * 64,
        fingerprint=learned[-1].fingerprint,
        frames=8,
        tasks=learned,
        config={"scale": 1.0},
        profiles=RoutingProfiles.from_dense(rows),
        tensors={"text.a": np.full((2, 3), float(tasks)), "image.a": np.zeros(4)},
    )


def _write(root: Path, tasks: int, first: Callable[[Path, ReleaseState], None] = write_release) -> Path:
    """Write releases ``1 … tasks``, where each continues the previous one."""
    for number in range(1, tasks + 1):
        folder = root / str(number)
        folder.mkdir()
        if number == 1:
            first(folder, _state(1))
        else:
            write_release(folder, _state(number), parent=ParentRelease(str(number - 1), number - 1))
    return root


def _read(root: Path, release: str) -> ReleaseState:
    return read_release(root / release, read_parent=lambda name: read_lineage(root / name))


def _assert_equal(one: ReleaseState, two: ReleaseState) -> None:
    assert {**vars(one), "tensors": 0, "profiles": 0} == {**vars(two), "tensors": 0, "profiles": 0}
    for name in ("tokens", "values", "ends", "vocabulary"):
        np.testing.assert_array_equal(getattr(one.profiles, name), getattr(two.profiles, name))
    assert one.tensors.keys() == two.tensors.keys()
    assert all(np.array_equal(one.tensors[name], array) for name, array in two.tensors.items())


def _rewrite(folder: Path, **fields: object) -> None:
    path = folder / "release.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _size(folder: Path, name: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.glob(name))


# -- size and content ---------------------------------------------------------------------------------------


def test_release_size_is_independent_of_the_number_of_tasks(tmp_path: Path) -> None:
    whole = _state(1000)
    sizes = {}
    for count in (10, 100, 1000):
        state = replace(
            whole,
            tasks=whole.tasks[:count],
            profiles=RoutingProfiles.from_dense(whole.profiles.to_dense(range(count))),
        )
        folder = tmp_path / f"{count}"
        folder.mkdir()
        write_release(folder, state, parent=ParentRelease("a" * 64, count - 1))
        sizes[count] = _size(folder)
    assert sizes[100] - sizes[10] == len("99") - len("9")
    assert sizes[1000] - sizes[100] == len("999") - len("99")


def test_release_with_ancestors_reads_like_a_single_release(tmp_path: Path) -> None:
    root = _write(tmp_path, 12)
    for number in (1, 2, 3, 7, 12):
        _assert_equal(_read(root, str(number)), _state(number))
    lean = read_query_release(root / "12", profiles=False)
    assert (lean.tasks, len(lean.profiles), set(lean.tensors)) == (_state(12).tasks[11:], 0, {"text.a"})


def test_only_lineage_files_of_ancestors_are_read(tmp_path: Path) -> None:
    root = _write(tmp_path, 4)
    for number in (1, 2, 3):
        for path in (root / str(number)).iterdir():
            if path.name not in LINEAGE_FILES:
                path.unlink()
    _assert_equal(_read(root, "4"), _state(4))


def test_profiles_concatenate_and_split_like_matrices() -> None:
    profiles = _profiles(7)
    dense = profiles.to_dense()
    for count in range(8):
        np.testing.assert_array_equal(profiles.part(count, 7).to_dense(), dense[count:])
        np.testing.assert_array_equal(profiles.part(0, count).to_dense(), dense[:count])
    parts = [profiles.part(5, 7), RoutingProfiles.from_dense(dense[:0]), profiles.part(1, 4)]
    np.testing.assert_array_equal(
        RoutingProfiles.concatenate(parts).to_dense(), np.concatenate([dense[5:], dense[1:4]])
    )
    with pytest.raises(ValueError, match="cannot be concatenated"):
        RoutingProfiles.concatenate([profiles, RoutingProfiles.from_dense(np.eye(2))])


# -- refusals ----------------------------------------------------------------------------------------


def test_missing_ancestor_is_named(tmp_path: Path) -> None:
    root = _write(tmp_path, 2)
    with pytest.raises(ReleaseError, match="release 2 continues release 1, which is not available"):
        read_release(root / "2")
    for count in (2, 3):
        with pytest.raises(ValueError, match="adds nothing"):
            write_release(root / "2", _state(2), parent=ParentRelease("1", count))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"before": {"release": "1", "tasks": 2}},
            "release 1 knows 1 tasks, but a later release continues it after 2",
        ),
        (
            {"before": {"release": "2", "tasks": 1}},
            "release 2 knows 2 tasks, but a later release continues it after 1",
        ),
        ({"before": {"release": "1", "tasks": 0}}, "with 0 tasks cannot be a parent"),
        ({"before": {"release": "1", "tasks": True}}, "cannot be a parent"),
        ({"before": {"release": "1", "tasks": 1.0}}, "cannot be a parent"),
        ({"before": {"release": 1, "tasks": 1}}, "cannot be a parent"),
        ({"before": {"tasks": 1}}, "lacks"),
        ({"before": ["1", 1]}, "lacks"),
        ({"before": None}, None),
        ({"tasks": []}, "1 routing profiles for 0 tasks"),
        ({"tasks": 3}, "lacks"),
        ({"tasks": [{"task_id": "tsk_0000", "name": "x", "fingerprint": "x"}]}, "learned the same task"),
    ],
)
def test_descriptions_with_an_inconsistent_lineage_are_refused(
    tmp_path: Path, fields: dict[str, object], message: str | None
) -> None:
    root = _write(tmp_path, 2)
    _rewrite(root / "2", **fields)
    if message is None:  # a release without a parent has only its own tasks
        assert len(_read(root, "2").tasks) == 1
    else:
        with pytest.raises(ReleaseError, match=message):
            _read(root, "2")


def _change_tensors(change: Callable[[dict[str, Array]], object], folder: Path) -> None:
    tensors = load_file(folder / "routing.safetensors")
    change(tensors)
    save_file(tensors, folder / "routing.safetensors")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: (folder / "routing.safetensors").unlink(), "routing.safetensors is missing"),
    "truncated": (
        lambda folder: (folder / "routing.safetensors").write_bytes(
            (folder / "routing.safetensors").read_bytes()[:-1]
        ),
        "routing.safetensors cannot be read",
    ),
    "garbage": (lambda folder: (folder / "routing.safetensors").write_bytes(b"{}"), "cannot be read"),
    "NaN values": (partial(_change_tensors, lambda t: t["values"].fill(float("nan"))), "not finite"),
    "token out of range": (
        partial(_change_tensors, lambda t: t["tokens"].fill(VOCABULARY)),
        "not routing profiles over",
    ),
    "tokens of another type": (
        partial(_change_tensors, lambda t: t.update(tokens=t["tokens"].astype(np.float64))),
        "not routing profiles over",
    ),
    "too many rows": (
        partial(_change_tensors, lambda t: t.update(ends=t["ends"].repeat(2))),
        "2 routing profiles for 1",
    ),
    "missing ends": (partial(_change_tensors, lambda t: t.pop("ends")), "lacks 'ends'"),
    "other vocabulary": (
        partial(_change_tensors, lambda t: t.update(vocabulary=np.array(2 * VOCABULARY))),
        "do not match",
    ),
    "missing description": (lambda folder: (folder / "release.json").unlink(), "release.json is missing"),
    "description is a list": (
        lambda folder: (folder / "release.json").write_text("[]"),
        "is not a JSON object",
    ),
    "description nested too deeply": (
        lambda folder: (folder / "release.json").write_text("[" * 100_000),
        "is not JSON",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("release", ["1", "2"])
def test_damage_is_named_in_a_release_and_in_its_ancestors(tmp_path: Path, damage: str, release: str) -> None:
    root = _write(tmp_path, 3)
    apply, message = DAMAGES[damage]
    apply(root / release)
    with pytest.raises(ReleaseError, match=message):
        _read(root, "3")
