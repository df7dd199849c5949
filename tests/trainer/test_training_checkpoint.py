"""Checkpoints on disk: failed writes, and claims that write at the same time."""

from __future__ import annotations

import copy
import errno
import json
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from trainer import training_checkpoint
from trainer.errors import CheckpointNotWritten
from trainer.training_checkpoint import Checkpoint, CheckpointStore
from trainer.worker.job_environment import failure_message


def test_failed_checkpoint_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object, path: Path) -> None:
        path.write_bytes(b"first bytes")
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints = CheckpointStore(tmp_path, "run")
    checkpoints.save(Checkpoint(1, [0.5], {"weight": torch.ones(3)}, {}))
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(CheckpointNotWritten) as caught:
        checkpoints.save(Checkpoint(2, [0.5, 0.4], {"weight": torch.ones(3)}, {"state": [torch.ones(2)]}))
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00001.0"]
    reason, hint, _ = failure_message(caught.value, "tsk_1") or ("", "", None)
    free = re.search(r"([\d,]+) bytes are free\.$", reason)
    assert f"the folder {tmp_path} is full; about 20 bytes are needed" in reason
    assert free is not None
    assert int(free[1].replace(",", "")) > 0
    assert hint == "Free up space on this disk, then retry the task."


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "is read-only"),
        (SafetensorError("I/O error: Read-only file system (os error 30)"), "is read-only"),
        (PermissionError(errno.EACCES, "Permission denied"), "denies access to this process"),
    ],
)
def test_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, state: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(training_checkpoint, "save_file", fail)
    with pytest.raises(CheckpointNotWritten) as caught:
        CheckpointStore(tmp_path / "tsk_1", "run").save(Checkpoint(1, [0.5], {"weight": torch.ones(3)}, {}))
    copied = copy.copy(caught.value)  # as from a process that trains together with others
    for problem in (caught.value, copied):
        reason, hint, _ = failure_message(problem, "tsk_1") or ("", "", None)
        assert reason == f"The training cannot store its checkpoint: the folder {tmp_path / 'tsk_1'} {state}."
        assert hint == "Make the folder writable for the worker's user, then retry the task."


def test_other_errors_of_a_write_are_not_those_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_checkpoint, "save_file", lambda *_: {}["a fault"])
    with pytest.raises(KeyError, match="a fault"):
        CheckpointStore(tmp_path, "run").save(Checkpoint(1, [0.5], {"weight": torch.ones(3)}, {}))


def test_other_files_of_a_read_only_data_folder_are_named() -> None:
    error = OSError(errno.EROFS, "Read-only file system", "/data/index/tmp/x")
    reason, hint, _ = failure_message(error, "tsk_1") or ("", "", None)
    assert "/data/index/tmp/x" in reason
    assert "read-only" in reason
    assert hint == "Make the data folder writable, then retry the task."


class _HangingClaim:
    """A claim that hangs while it saves a checkpoint: ``meanwhile`` runs at that place."""

    def __init__(self, patch: pytest.MonkeyPatch, where: str, meanwhile: Callable[[], None]) -> None:
        owner, name = _PLACES[where]
        original, self.left = getattr(owner, name), [meanwhile]

        def hang(*args: Any, **fields: Any) -> Any:
            # The last removal is that of a checkpoint.
            if self.left and (where != "dropping" or (args[0] / "checkpoint.json").exists()):
                self.left.pop()()
            return original(*args, **fields)

        patch.setattr(owner, name, hang)


_PLACES: dict[str, tuple[Any, str]] = {
    "beginning": (shutil, "rmtree"),
    "writing": (torch, "save"),
    "renaming": (Path, "replace"),
    "dropping": (shutil, "rmtree"),
}


@pytest.mark.parametrize("where", ["beginning", "writing", "renaming", "dropping"])
@pytest.mark.parametrize("epochs", [(3,), (3, 4)], ids=["same epoch", "later epoch"])
@pytest.mark.parametrize("run", ["same", "another"])
def test_outdated_claim_does_not_touch_checkpoints_of_the_next_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, epochs: tuple[int, ...], run: str
) -> None:
    def checkpoint(epoch: int, value: float) -> Checkpoint:
        return Checkpoint(epoch, [0.5] * epoch, {"weight": torch.full((3,), value)}, {})

    def weight(loaded: Checkpoint | None) -> float:
        assert loaded is not None
        return loaded.method["weight"][0].item()

    late, next_one = CheckpointStore(tmp_path, "same", 4), CheckpointStore(tmp_path, run, 6)
    for epoch in (1, 2):
        late.save(checkpoint(epoch, epoch))

    def meanwhile() -> None:
        for epoch in epochs:
            next_one.save(checkpoint(epoch, 10.0 * epoch))

    hanging = _HangingClaim(monkeypatch, where, meanwhile)
    with suppress(OSError, RuntimeError):  # the next claim has removed the files being written
        late.save(checkpoint(3, 3.0))
    assert not hanging.left
    newest = CheckpointStore(tmp_path, run, 8).load()
    assert weight(newest) == 10.0 * epochs[-1]
    next_one.save(checkpoint(5, 50.0))
    last = {"epoch-00004.6"} if 4 in epochs else set()
    assert {path.name for path in tmp_path.iterdir()} == {"epoch-00005.6", *last}, (
        "files of the outdated claim are removed"
    )


def test_checkpoint_replaced_during_load_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the next claim reads the newest checkpoint, the claim before saves two others and removes that one."""
    late = CheckpointStore(tmp_path, "run", 4)

    def save(epoch: int) -> None:
        late.save(Checkpoint(epoch, [0.5] * epoch, {"weight": torch.ones(3)}, {}))

    save(1)
    original = json.loads
    left = [lambda: [save(2), save(3)]]

    def load_slowly(text: str) -> Any:
        if left:
            left.pop()()
        return original(text)

    monkeypatch.setattr(json, "loads", load_slowly)
    loaded = CheckpointStore(tmp_path, "run", 6).load()
    assert loaded is not None
    assert loaded.epoch == 3
