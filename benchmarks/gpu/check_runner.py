"""Run checks one by one, each in its own process, within a time budget.

A check that fails, crashes its process, runs out of memory or never ends does not affect the others. A check whose
package is not installed is skipped, naming the package.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

Outcome = Literal["passed", "failed", "skipped"]
Figures = dict[str, Any]

# The project's own packages: if one is missing, that is an error, not a reason to skip a check.
_OWN = ("benchmarks", "cinestrata_schemas", "index", "media", "models", "service", "trainer", "api", "cli")
# Imported once: each check starts as a fork of a process that has them. Neither initializes CUDA.
_PRELOADED = ["torch", "open_clip"]
_MIN_SECONDS = 5.0  # what must be left of the budget to start a check


class CheckFailed(Exception):
    """A promise that the check tests does not hold; the reason names it and the figure."""

    def __init__(self, reason: str, figures: Figures | None = None) -> None:
        super().__init__(reason)
        self.figures = figures or {}


class Skipped(Exception):
    """A check cannot run on this machine."""


@dataclass(frozen=True)
class Check:
    """A check: the function ``module:name``, its arguments after the plan, and the seconds after which it fails."""

    name: str
    target: str
    seconds: float
    arguments: tuple[Any, ...] = ()
    is_required: bool = False


@dataclass(frozen=True)
class CheckResult:
    """Result of a check: wall time with the start of its process, why it did not pass, and measured values."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    figures: Figures = field(default_factory=dict)


def run_checks(checks: Sequence[Check], plan: object, budget: float) -> Iterator[CheckResult]:
    """Run checks in order within a budget of seconds, and yield each result as soon as it is known."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    end = time.monotonic() + budget
    missing = ""
    for check in checks:
        left = end - time.monotonic()
        if missing:
            yield CheckResult(check.name, "skipped", reason=f"the check {missing!r} did not pass")
        elif left < _MIN_SECONDS:
            reason = f"the time budget of {budget:.0f} s is used up; --budget raises it"
            yield CheckResult(check.name, "skipped", reason=reason)
        else:
            result = _run_check(context, check, plan, min(check.seconds, left))
            yield result
            if check.is_required and result.outcome != "passed":
                missing = check.name


def _run_check(context: Any, check: Check, plan: object, seconds: float) -> CheckResult:
    """Run a check in a new process, then end that process and its children."""
    began = time.monotonic()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_execute, args=(sender, check, plan))
    process.start()
    sender.close()
    fields: dict[str, Any] | None = None
    is_late = not receiver.poll(seconds)
    if not is_late:
        with suppress(EOFError):
            fields = receiver.recv()
            process.join(2)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # with the servers that the check started
    if process.is_alive():
        process.kill()  # before it became the leader of its group
    process.join()
    if fields is None:
        late = f"it did not end within {seconds:.0f} s"
        ended = f"its process ended with status {process.exitcode}"
        fields = {"outcome": "failed", "reason": late if is_late else ended}
    return CheckResult(check.name, seconds=round(time.monotonic() - began, 1), **fields)


def _execute(sender: Connection, check: Check, plan: object) -> None:
    """Run a check in its process, and send the outcome, reason and figures."""
    os.setsid()
    module, _, name = check.target.partition(":")
    try:
        figures = getattr(import_module(module), name)(plan, *check.arguments)
        fields = {"outcome": "passed", "figures": figures}
    except Skipped as error:
        fields = {"outcome": "skipped", "reason": str(error)}
    except CheckFailed as error:
        fields = {"outcome": "failed", "reason": str(error), "figures": error.figures}
    except Exception as error:
        fields = {"outcome": "failed", "reason": traceback.format_exc()}
        package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
        if package and package not in _OWN:
            fields = {"outcome": "skipped", "reason": f"the package {package} cannot be imported: {error}"}
    sender.send(fields)
    sender.close()


class TrainingSize(NamedTuple):
    """Model of open_clip, method, pairs per step, and steps in each of two epochs; the second is measured."""

    model: str
    method: str
    batch: int
    steps: int


@dataclass(frozen=True)
class GpuPlan:
    """Sizes of all checks; the defaults fit a GPU with 80 GB, with 12 frames as in both papers' tables on MSR-VTT."""

    device: str
    folder: Path
    frames: int = 12
    models: tuple[str, ...] = ("ViT-B-32", "ViT-L-14")
    embedded_videos: int = 256
    trainings: tuple[TrainingSize, ...] = (
        TrainingSize("ViT-B-32", "ffa_tame", 8, 60),
        TrainingSize("ViT-B-32", "bmu_moco", 48, 15),
        TrainingSize("ViT-L-14", "ffa_tame", 8, 20),
        TrainingSize("ViT-L-14", "bmu_moco", 12, 12),
    )
    scanned_vectors: tuple[int, ...] = (10**6, 10**7)
    searched_vectors: int = 100_000
    searched_domains: int = 10
    searches: int = 200
    memory_gib: float = 8

    def backbone_name(self, model: str) -> str:
        """Name the backbone of a model with random weights; raise Skipped if its checkpoint was not written."""
        weights = self.folder / model / "open_clip_model.safetensors"
        if not weights.exists():
            raise Skipped(f"there is no checkpoint of {model}")
        return f"open_clip:{model}/{weights}"


def plan_checks(device: str, folder: Path) -> GpuPlan:
    """Choose the sizes for a device, ``cuda`` or ``cpu``."""
    plan = GpuPlan(device, folder)
    if device == "cuda":
        return plan
    model = "ViT-S-32-alt"
    return replace(
        plan,
        frames=2,
        models=(model,),
        embedded_videos=4,
        trainings=(TrainingSize(model, "ffa_tame", 2, 2), TrainingSize(model, "bmu_moco", 2, 2)),
        scanned_vectors=(5000,),
        searched_vectors=400,
        searched_domains=2,
        searches=50,
        memory_gib=1.5,
    )
