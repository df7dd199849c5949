"""Releases that keep what they learned and name the one before: they grow no longer, and are read as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.encoders.encoder_registry import read_query_release
from models.errors import ReleaseError
from models.releases.release_files import LINEAGE_FILES, read_lineage, read_release, write_release
from models.releases.release_lineage import ParentRelease, ReleaseTask, TaskLineage
from models.releases.release_state import ReleaseState
from models.routing.router import Router
from models.routing.routing_profiles import RoutingProfiles
from tests.models.releases.old_releases import write_schema_2

VOCABULARY, WORDS = 500, 20


def _profiles(tasks: int) -> RoutingProfiles:
    """As many words for each, of numbers that half precision holds; the third task has none."""
    rng = np.random.default_rng(0)
    rows = np.zeros((tasks, VOCABULARY), np.float32)
    for number, row in enumerate(rows):
        if number != 2:
            row[rng.choice(VOCABULARY, WORDS, replace=False)] = rng.integers(1, 2000, WORDS) / 256
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
        tensors={"text.a": torch.full((2, 3), float(tasks)), "image.a": torch.zeros(4)},
    )


def _write(root: Path, tasks: int, first: Callable[[Path, ReleaseState], None] = write_release) -> Path:
    """Releases ``1 … tasks``, each but the first going on from the one before it."""
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


def _same(one: ReleaseState, two: ReleaseState) -> None:
    assert {**vars(one), "tensors": 0, "profiles": 0} == {**vars(two), "tensors": 0, "profiles": 0}
    for name in ("tokens", "values", "ends", "vocabulary"):
        np.testing.assert_array_equal(getattr(one.profiles, name), getattr(two.profiles, name))
    assert one.tensors.keys() == two.tensors.keys()
    assert all(torch.equal(one.tensors[name], tensor) for name, tensor in two.tensors.items())


def _rewrite(folder: Path, **fields: object) -> None:
    path = folder / "release.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _size(folder: Path, name: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.glob(name))


# -- size and content ---------------------------------------------------------------------------------------


def test_a_release_is_as_large_after_a_thousand_tasks_as_after_ten(tmp_path: Path) -> None:
    whole = _state(1000)
    sizes, before = {}, {}
    for count in (10, 100, 1000):
        state = replace(
            whole,
            tasks=whole.tasks[:count],
            profiles=RoutingProfiles.from_dense(whole.profiles.to_dense(range(count))),
        )
        folder, old = tmp_path / f"{count}", tmp_path / f"old {count}"
        folder.mkdir()
        old.mkdir()
        write_release(folder, state, parent=ParentRelease("a" * 64, count - 1))
        write_schema_2(old, state)
        sizes[count], before[count] = _size(folder), _size(old)
    assert sizes[100] - sizes[10] == len("99") - len("9")
    assert sizes[1000] - sizes[100] == len("999") - len("99")
    assert before[1000] - before[100] > 900 * (6 * WORDS + 100)


def test_what_is_read_is_what_one_release_of_all_would_hold(tmp_path: Path) -> None:
    root = _write(tmp_path, 12)
    for number in (1, 2, 3, 7, 12):
        _same(_read(root, str(number)), _state(number))
    lean = read_query_release(root / "12", profiles=False)
    assert (lean.tasks, len(lean.profiles), set(lean.tensors)) == (_state(12).tasks[11:], 0, {"text.a"})


def test_only_small_files_are_read_of_those_before(tmp_path: Path) -> None:
    root = _write(tmp_path, 4)
    for number in (1, 2, 3):
        for path in (root / str(number)).iterdir():
            if path.name not in LINEAGE_FILES:
                path.unlink()
    _same(_read(root, "4"), _state(4))


def test_the_old_layout_is_read_and_gone_on_from(tmp_path: Path) -> None:
    """Equal to the last bit, evidence and all; in the middle of a line too."""
    tokens, tasks = np.arange(0, VOCABULARY, 3), np.arange(6)
    expected = Router(_state(6).profiles).evidence(tokens, tasks)
    for name, older in (("two", 3), ("one", 1)):
        root = tmp_path / name
        root.mkdir()
        _write(root, 6)
        for number in range(1, older + 1):
            for path in (root / str(number)).iterdir():
                path.unlink()
            write_schema_2(root / str(number), _state(number))
        if name == "one":  # as schema 1 had it
            dense = {"routing.profiles": torch.from_numpy(_state(1).profiles.to_dense()).half()}
            save_file({**_state(1).tensors, **dense}, root / "1" / "weights.safetensors")
            _rewrite(root / "1", schema=1)
        for number in (1, 3, 6):
            _same(_read(root, str(number)), _state(number))
        assert read_lineage(root / str(older)).parent is None
        found = Router(_read(root, "6").profiles).evidence(tokens, tasks)
        np.testing.assert_array_equal(found, expected)


def test_rows_are_joined_and_parted_as_matrices_are() -> None:
    profiles = _profiles(7)
    dense = profiles.to_dense()
    for count in range(8):
        np.testing.assert_array_equal(profiles.without_first(count).to_dense(), dense[count:])
    parts = [
        profiles.without_first(5),
        RoutingProfiles.from_dense(dense[:0]),
        RoutingProfiles.from_dense(dense[1:4]),
    ]
    np.testing.assert_array_equal(
        RoutingProfiles.concatenate(parts).to_dense(), np.concatenate([dense[5:], dense[1:4]])
    )
    with pytest.raises(ValueError, match="cannot be concatenated"):
        RoutingProfiles.concatenate([profiles, RoutingProfiles.from_dense(np.eye(2))])


# -- what does not fit ----------------------------------------------------------------------------------------


def test_a_release_alone_says_what_it_goes_on_from(tmp_path: Path) -> None:
    root = _write(tmp_path, 2)
    with pytest.raises(ReleaseError, match="release 2 continues release 1, which is not available"):
        read_release(root / "2")
    for count in (2, 3):
        with pytest.raises(ValueError, match="adds nothing"):
            write_release(root / "2", _state(2), parent=ParentRelease("1", count))


@pytest.mark.parametrize(
    ("fields", "says"),
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
def test_descriptions_that_fit_no_line_are_refused(
    tmp_path: Path, fields: dict[str, object], says: str | None
) -> None:
    root = _write(tmp_path, 2)
    _rewrite(root / "2", **fields)
    if says is None:  # one that goes on from nothing holds all that it knows
        assert len(_read(root, "2").tasks) == 1
    else:
        with pytest.raises(ReleaseError, match=says):
            _read(root, "2")


def _tensors(change: Callable[[dict[str, torch.Tensor]], object], folder: Path) -> None:
    tensors = load_file(folder / "routing.safetensors")
    change(tensors)
    save_file(tensors, folder / "routing.safetensors")


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda folder: (folder / "routing.safetensors").unlink(), "routing.safetensors is missing"),
    "cut": (
        lambda folder: (folder / "routing.safetensors").write_bytes(
            (folder / "routing.safetensors").read_bytes()[:-1]
        ),
        "routing.safetensors cannot be read",
    ),
    "garbage": (lambda folder: (folder / "routing.safetensors").write_bytes(b"{}"), "cannot be read"),
    "no numbers": (partial(_tensors, lambda t: t["values"].fill_(float("nan"))), "not finite"),
    "a token beyond all": (
        partial(_tensors, lambda t: t["tokens"].fill_(VOCABULARY)),
        "not routing profiles over",
    ),
    "tokens of another kind": (
        partial(_tensors, lambda t: t.update(tokens=t["tokens"].double())),
        "not routing profiles over",
    ),
    "numbers that numpy does not know": (
        partial(_tensors, lambda t: t.update(values=t["values"].bfloat16())),
        "lacks",
    ),
    "a row too many": (
        partial(_tensors, lambda t: t.update(ends=t["ends"].repeat(2))),
        "2 routing profiles for 1",
    ),
    "without ends": (partial(_tensors, lambda t: t.pop("ends")), "lacks 'ends'"),
    "another vocabulary": (
        partial(_tensors, lambda t: t.update(vocabulary=torch.tensor(2 * VOCABULARY))),
        "do not match",
    ),
    "no description": (lambda folder: (folder / "release.json").unlink(), "release.json is missing"),
    "a list": (lambda folder: (folder / "release.json").write_text("[]"), "is not a JSON object"),
    "too deep": (lambda folder: (folder / "release.json").write_text("[" * 100_000), "is not JSON"),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("release", ["1", "2"])
def test_every_harm_is_named_wherever_it_is(tmp_path: Path, harm: str, release: str) -> None:
    root = _write(tmp_path, 3)
    do, says = HARMS[harm]
    do(root / release)
    with pytest.raises(ReleaseError, match=says):
        _read(root, "3")


def test_a_line_without_words_is_one_too() -> None:
    first = TaskLineage((ReleaseTask("a", "a", "f"),), RoutingProfiles.from_dense(np.zeros((1, 9))))
    second = TaskLineage(
        (ReleaseTask("b", "b", "f"),), RoutingProfiles.from_dense(np.zeros((1, 9))), ParentRelease("first", 1)
    )
    whole = second.resolve({"first": first}.__getitem__)
    assert [task.task_id for task in whole.tasks] == ["a", "b"]
    assert whole.profiles.silent.tolist() == [True, True]
    assert (whole.parent, whole.total_tasks, second.total_tasks) == (None, 2, 2)
