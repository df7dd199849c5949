"""Faults inside the product's processes: kill points, and a shifted catalog clock.

The harness writes the name of a kill point to a file. The first process that reaches the point takes the file and ends
itself with SIGKILL. The product is unchanged: an import hook wraps the listed functions when their modules are
imported.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER_VARIABLE = "CHAOS_FAULTS"  # folder where the harness arms faults
_ARMED, _KILLED, _OFFSET = "kill-point", "killed-process", "clock-offset"
_CATALOG_CLOCK = "service.catalog.database"


@dataclass(frozen=True)
class KillPoint:
    """A product function, or class and method joined by a dot, before or after which its process dies."""

    operation: str
    module: str
    attribute: str
    before: bool = False


_LEARNING, _APPENDING = "trainer.worker.learning_job", "trainer.worker.append_job"
_LEASE, _STORE = "service.tasks.lifecycle.claims", "index.shard_store"
_PUBLISHING, _FOLDER = "service.tasks.lifecycle.publishing", "index.files.store_folder"
_UPGRADES = "service.tasks.upgrades"

_LEARNING_POINTS = {
    "task claimed": KillPoint("learn", _LEARNING, "load_task", before=True),
    "checkpoint written": KillPoint("learn", "trainer.training_checkpoint", "CheckpointStore.save"),
    "task trained": KillPoint("learn", _LEARNING, "train_task"),
    "release written": KillPoint("learn", _STORE, "ShardStore.adopt_release"),
    "shard written": KillPoint("learn", _STORE, "ShardStore.write_shard"),
    "task indexed": KillPoint("learn", _LEARNING, "index_task"),
    "task evaluated": KillPoint("learn", _LEARNING, "evaluate_task"),
    "manifest to be replaced": KillPoint("learn", _FOLDER, "StoreFolder.replace_manifest", before=True),
    "release in manifest": KillPoint("learn", _STORE, "ShardStore.publish"),
    "release in catalog rows": KillPoint("learn", _PUBLISHING, "Publication.complete"),
    "release committed": KillPoint("learn", _LEARNING, "clean_up", before=True),
    "learning cleaned up": KillPoint("learn", _LEARNING, "clean_up"),
}

_WORDS = "index.words.word_files"
_WORD_POINTS = {
    "words sealed": KillPoint("learn", _WORDS, "WordFiles._seal"),
    "words to be replaced": KillPoint("learn", _WORDS, "replace_text", before=True),
    "words written": KillPoint("learn", _WORDS, "WordFiles.write"),
}

KILL_POINTS: dict[str, KillPoint] = {
    **_LEARNING_POINTS,
    **_WORD_POINTS,
    **{f"upgrade, {name}": replace(point, operation="upgrade") for name, point in _LEARNING_POINTS.items()},
    "upgrade stored": KillPoint("upgrade", _UPGRADES, "upgrade_domain"),
    "undo in manifest": KillPoint("undo", _STORE, "ShardStore.undo_upgrade"),
    "undo in catalog rows": KillPoint("undo", _PUBLISHING, "settle_upgrade"),
    "undo committed": KillPoint("undo", _UPGRADES, "undo_upgrade"),
    "accept in manifest": KillPoint("accept", _STORE, "ShardStore.accept_upgrade"),
    "accept committed": KillPoint("accept", _UPGRADES, "accept_upgrade"),
    "append claimed": KillPoint("append", _APPENDING, "load_task", before=True),
    "segments written": KillPoint("append", _APPENDING, "_write_segments"),
    "append measured": KillPoint("append", _APPENDING, "_measure"),
    "segments in manifest": KillPoint("append", _STORE, "ShardStore.append"),
    "append in catalog rows": KillPoint("append", _PUBLISHING, "AppendPublication.complete"),
    **{f"append, {name}": replace(point, operation="append") for name, point in _WORD_POINTS.items()},
    "append committed": KillPoint("append", _APPENDING, "_compact", before=True),
    "videos reassigned": KillPoint("relearn", _PUBLISHING, "Reassignment.prepare"),
    "thumbnails moved": KillPoint("relearn", _PUBLISHING, "Reassignment.move_thumbnails"),
    "probing planned": KillPoint("probe", "service.tasks.probing", "_plan"),
    "video probed": KillPoint("probe", "service.tasks.probing", "_probe_video"),
    "results of a chunk stored": KillPoint("probe", "service.tasks.probing", "_store_results"),
    "chunk completed": KillPoint("probe", "service.tasks.lifecycle.chunks", "ChunkClaim.complete"),
    "chunks done": KillPoint("probe", "service.tasks.probing", "complete_probing", before=True),
    "probing finished": KillPoint("probe", _LEASE, "Claim.finish_probing"),
    "tombstones in manifest": KillPoint("delete", "service.library.deletion", "_add_tombstones"),
    "deletion committed": KillPoint("delete", "service.library.deletion", "_delete"),
    "request stored": KillPoint("post", "service.tasks.commands", "_create_from_spec"),
    "sync listed": KillPoint("sync", "service.syncs.registered_syncs", "plan_sync"),
    "sync sent": KillPoint("sync", "service.syncs.registered_syncs", "_append"),
}


def arm_kill_point(folder: Path, name: str) -> None:
    """Make the next process that reaches a point in :data:`KILL_POINTS` die there."""
    (folder / _KILLED).unlink(missing_ok=True)
    _write(folder / _ARMED, name)


def disarm(folder: Path) -> bool:
    """Disarm the kill point; returns whether no process had reached it."""
    try:
        (folder / _ARMED).unlink()
    except FileNotFoundError:
        return False
    return True


def killed_process(folder: Path) -> int | None:
    """Get the ID of the process that died at the armed kill point; None if none has reached it."""
    try:
        return int((folder / _KILLED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def shift_clock(folder: Path, seconds: float) -> None:
    """Make the catalog's clock differ from the machine's by these seconds, in all processes."""
    _write(folder / _OFFSET, str(seconds))


def _write(path: Path, text: str) -> None:
    """Write a file at once, for processes that read it meanwhile."""
    staged = path.with_name(f".{path.name}")
    staged.write_text(text, encoding="utf-8")
    staged.rename(path)


def install() -> None:
    """Install the import hook, if this process belongs to a chaos run."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        sys.meta_path.insert(0, _WrappingFinder(Path(folder)))


class _WrappingFinder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and wraps functions in them after import."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules = {point.module for point in KILL_POINTS.values()} | {_CATALOG_CLOCK}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._wrap(name, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _wrap(self, name: str, module: ModuleType) -> None:
        for label, point in KILL_POINTS.items():
            if point.module == name:
                _wrap_point(self._folder, label, point, module)
        if name == _CATALOG_CLOCK:
            module.datetime = _shifted_datetime(self._folder / _OFFSET)  # type: ignore[attr-defined]


def _wrap_point(folder: Path, label: str, point: KillPoint, module: ModuleType) -> None:
    *owners, name = point.attribute.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part)
    # Raises AttributeError for a name that the product no longer has: correct the table then.
    stored = inspect.getattr_static(owner, name)
    original: Callable[..., Any] = stored.__func__ if isinstance(stored, classmethod) else stored

    @functools.wraps(original)
    def call(*args: Any, **fields: Any) -> Any:
        if point.before:
            _die_if_armed(folder, label)
        result = original(*args, **fields)
        if not point.before:
            _die_if_armed(folder, label)
        return result

    setattr(owner, name, classmethod(call) if isinstance(stored, classmethod) else call)


def _die_if_armed(folder: Path, label: str) -> None:
    armed, taken = folder / _ARMED, folder / f".{_KILLED}-{os.getpid()}"
    try:
        if armed.read_text(encoding="utf-8") != label:
            return
        armed.rename(taken)  # of two processes that reach the point at once, one dies
    except FileNotFoundError:
        return
    taken.write_text(str(os.getpid()), encoding="utf-8")
    taken.rename(folder / _KILLED)
    os.kill(os.getpid(), signal.SIGKILL)


def _shifted_datetime(offset: Path) -> type[datetime]:
    class ShiftedDatetime(datetime):
        """``datetime`` whose ``now`` differs from the machine's clock."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            try:
                seconds = float(offset.read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):
                seconds = 0.0
            return datetime.now(tz) + timedelta(seconds=seconds)

    return ShiftedDatetime
