"""Checkpoints on disk: failed writes, and claims that write at the same time."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.training_checkpoint import Checkpoint, CheckpointStore


def test_failed_checkpoint_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object, path: Path) -> None:
        path.write_bytes(b"first bytes")
        raise OSError(errno.ENOSPC, "No space left on device")

    checkpoints = CheckpointStore(tmp_path, "run")
    checkpoints.save(Checkpoint(1, [0.5], {"weight": torch.ones(3)}, {}))
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(Checkpoint(2, [0.5, 0.4], {"weight": torch.ones(3)}, {}))
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00001.0"]


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
@pytest.mark.parametrize("epochs", [(2,), (2, 3)], ids=["same epoch", "later epoch"])
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
    late.save(checkpoint(1, 1.0))

    def meanwhile() -> None:
        for epoch in epochs:
            next_one.save(checkpoint(epoch, 10.0 * epoch))

    hanging = _HangingClaim(monkeypatch, where, meanwhile)
    with suppress(OSError, RuntimeError):  # the next claim has removed the files being written
        late.save(checkpoint(2, 2.0))
    assert not hanging.left
    newest = CheckpointStore(tmp_path, run, 8).load()
    assert weight(newest) == 10.0 * epochs[-1]
    next_one.save(checkpoint(4, 40.0))
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00004.6"], (
        "files of the outdated claim are removed"
    )


def test_checkpoint_replaced_during_load_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the next claim reads the newest checkpoint, the claim before saves another and removes that one."""
    late = CheckpointStore(tmp_path, "run", 4)
    late.save(Checkpoint(1, [0.5], {"weight": torch.ones(3)}, {}))
    original = json.loads
    left = [lambda: late.save(Checkpoint(2, [0.5, 0.4], {"weight": torch.ones(3)}, {}))]

    def load_slowly(text: str) -> Any:
        if left:
            left.pop()()
        return original(text)

    monkeypatch.setattr(json, "loads", load_slowly)
    loaded = CheckpointStore(tmp_path, "run", 6).load()
    assert loaded is not None
    assert loaded.epoch == 2
