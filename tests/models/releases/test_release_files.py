"""Release files: round trip, sizes, and invalid files that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.encoders.encoder_registry import read_query_release, select_query_tensors
from models.errors import ReleaseError
from models.releases.release_files import read_release, write_release
from models.releases.release_state import CalibrationCaption, ReleaseState, ReleaseTask
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import RoutingProfiles


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
        profiles=RoutingProfiles.from_dense(np.eye(1, 5)),
        tensors={
            "tame.a": np.arange(6.0).reshape(3, 2).T,
            "tame.task_experts": np.array([0]),
            "scale": np.array(2.0),
        },
    )


def test_release_round_trips(state: ReleaseState, tmp_path: Path) -> None:
    write_release(tmp_path, state)
    read = read_release(tmp_path)
    assert {**vars(read), "tensors": 0, "profiles": 0} == {**vars(state), "tensors": 0, "profiles": 0}
    np.testing.assert_array_equal(read.profiles.to_dense(), state.profiles.to_dense())
    assert read.tensors.keys() == state.tensors.keys()
    assert all(np.array_equal(read.tensors[n], a) for n, a in state.tensors.items())
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "release.json",
        "routing.safetensors",
        "weights.safetensors",
    ]


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
    description = json.loads((tmp_path / "release.json").read_text())
    description["confidence"]["weights"] = [-1.0] * 6
    (tmp_path / "release.json").write_text(json.dumps(description))
    with pytest.raises(ReleaseError, match="do not belong to a calibration"):
        read_release(tmp_path)
    del description["confidence"]  # too few captions
    (tmp_path / "release.json").write_text(json.dumps(description))
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
    for name in ("release.json", "routing.safetensors", "weights.safetensors"):
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
    description = json.loads((tmp_path / "release.json").read_text())
    if value is ...:
        del description[field]
    else:
        description[field] = value
    (tmp_path / "release.json").write_text(json.dumps(description))
    with pytest.raises(ReleaseError, match=message):
        read_query_release(tmp_path)
