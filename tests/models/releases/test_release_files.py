"""Release files: round trip, sizes, reading along the lineage, and invalid files and ancestors that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.encoders.encoder_registry import read_query_release, select_query_tensors
from models.errors import ReleaseError
from models.releases.release_files import LINEAGE_FILES, read_lineage, read_release, write_release
from models.releases.release_state import Array, CalibrationCaption, ParentRelease, ReleaseState, ReleaseTask
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import VOCABULARY, RoutingProfiles

FILES = ["release.json", "routing.safetensors", "weights.safetensors"]


@pytest.fixture
def state() -> ReleaseState:
    return ReleaseState(
        method="ffa_tame",
        kind="tame",
        backbone="tiny",
        backbone_fingerprint="b" * 64,
        fingerprint="f" * 64,
        frames=8,
        tasks=[ReleaseTask("tsk_1", "night traffic", "f" * 64)],
        config={"rank": 4},
        profiles=RoutingProfiles.from_dense(np.eye(1, VOCABULARY)),
        tensors={
            "tame.a": np.arange(6.0).reshape(3, 2).T,
            "tame.task_experts": np.array([0]),
            "scale": np.array(2.0),
        },
    )


def test_release_round_trips(state: ReleaseState, tmp_path: Path) -> None:
    write_release(tmp_path, state)
    _assert_equal(read_release(tmp_path), state)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_calibration_captions_are_stored_apart_from_the_query_release(
    state: ReleaseState, tmp_path: Path
) -> None:
    caption = CalibrationCaption("tsk_1", 7, "ein Hund läuft", 1.5, -0.25, 0.5, 0.125, (7, 3), (0.5, 0.125))
    caption = replace(caption, retyped=((0.5, 6.25), (0.25, -1.5)))
    write_release(tmp_path, replace(state, calibration=(caption,)))
    assert read_release(tmp_path).calibration == (caption,)
    assert read_query_release(tmp_path).calibration == ()
    (tmp_path / "calibration.json").write_text('[{"task": "tsk_1"}]')
    with pytest.raises(ReleaseError, match=r"calibration\.json cannot be read"):
        read_release(tmp_path)


def test_confidence_model_is_stored_and_validated(state: ReleaseState, tmp_path: Path) -> None:
    fitted = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), -3.0, 240, 0.04)
    write_release(tmp_path, replace(state, confidence=fitted))
    assert read_release(tmp_path).confidence == read_query_release(tmp_path).confidence == fitted
    _rewrite(tmp_path, confidence={**fitted.to_json(), "weights": [-1.0] * 6})
    with pytest.raises(ReleaseError, match="do not belong to a calibration"):
        read_release(tmp_path)
    _rewrite(tmp_path, confidence=...)  # too few captions
    assert read_release(tmp_path).confidence is None


def test_read_query_release_skips_other_tensors(state: ReleaseState, tmp_path: Path) -> None:
    state.tensors["ffa.0.alpha"] = np.zeros(1)
    write_release(tmp_path, state)
    assert set(read_release(tmp_path).tensors) == {"tame.a", "tame.task_experts", "scale", "ffa.0.alpha"}
    read = read_query_release(tmp_path)
    assert set(read.tensors) == set(select_query_tensors(state).tensors) == {"tame.a", "tame.task_experts"}
    lean = read_query_release(tmp_path, profiles=False)
    assert (set(lean.tensors), len(lean.profiles)) == (set(read.tensors), 0)
    np.testing.assert_array_equal(read.profiles.to_dense(), state.profiles.to_dense())


def test_equal_states_give_equal_bytes(state: ReleaseState, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    write_release(tmp_path / "one", state)
    write_release(tmp_path / "two", state)
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("release.json", None, "release.json is missing"),
        ("weights.safetensors", None, "weights.safetensors is missing"),
        ("release.json", b"{", "not JSON"),
        ("release.json", b"\xff\xfe", "not JSON"),
        ("weights.safetensors", b"garbage", "cannot be read"),
    ],
)
def test_invalid_files_are_named(
    state: ReleaseState, tmp_path: Path, file: str, content: bytes | None, message: str
) -> None:
    write_release(tmp_path, state)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(ReleaseError, match=message):
        read_query_release(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schema", 4, "use the version that wrote it"),
        ("kind", "x", "release kind 'x' is unknown"),
        ("kind", 7, "kind 7 is not a string"),
        ("frames", ..., "lacks"),
    ],
)
def test_invalid_descriptions_are_refused(
    state: ReleaseState, tmp_path: Path, field: str, value: object, message: str
) -> None:
    write_release(tmp_path, state)
    _rewrite(tmp_path, **{field: value})
    with pytest.raises(ReleaseError, match=message):
        read_query_release(tmp_path)


TOKENS_PER_TASK = 20


def _profiles(tasks: int) -> RoutingProfiles:
    """Draw profiles with values that half precision represents exactly; the third task has no captions."""
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
    """Change fields of the description; ``...`` removes one."""
    path = folder / "release.json"
    changed = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in changed.items() if value is not ...}))


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
        ({"before": {"release": "1", "tasks": 2}}, "release 1 knows 1 tasks, but .* continues it after 2"),
        ({"before": {"release": "2", "tasks": 1}}, "release 2 knows 2 tasks, but .* continues it after 1"),
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
