"""Many runs of a protocol: those that are done already are kept, the others are made, several at once if wanted.

Every result is written as soon as it is there, so whatever stops a campaign costs the runs in progress alone.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import platform
import signal
import subprocess
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning.method_runner import run_method
from benchmarks.learning.method_variants import MethodVariant
from benchmarks.learning.protocol import Protocol
from benchmarks.learning.run_results import RunResult, read_result, result_path, write_result
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from trainer.methods import METHODS, configure
from trainer.task_data import TaskData
from trainer.training_checkpoint import run_identity

__all__ = ["Campaign", "Run"]


@dataclass(frozen=True)
class Run:
    """One method with one seed."""

    variant: MethodVariant
    seed: int

    def __str__(self) -> str:
        return f"{self.variant.label}, seed {self.seed}"


@dataclass(frozen=True)
class Campaign:
    """What is to be run, and on what. It travels to the processes that run it.

    Attributes:
        tasks: prepared, with their frames in place.
        backbone: name; ``fingerprint`` is that of its weights.
        frames: per video.
        device: cpu or cuda.
        out: folder of the results.
        command: that was typed.
    """

    protocol: Protocol
    tasks: Sequence[TaskData]
    backbone: str
    fingerprint: str
    frames: int
    device: str
    out: Path
    command: str

    @property
    def data(self) -> str:
        """Identity of what everything is measured on."""
        videos = [
            [(c.id, c.split, c.captions, c.frames_path.name) for c in task.clips] for task in self.tasks
        ]
        return run_identity(self.fingerprint, self.frames, self.protocol.queries, videos)

    def runs(self, variants: Sequence[MethodVariant], seeds: int | None = None) -> list[Run]:
        """Every variant with every seed, seed by seed, so that a table is there early. Where nothing is trained, one
        seed says all.

        Args:
            seeds: how many for every variant; by default what the variant says, or else the protocol.
        """
        wanted = [
            Run(variant, seed)
            for variant in variants
            for seed in range(
                (seeds or variant.seeds or self.protocol.seeds) if METHODS[variant.method].is_trainable else 1
            )
        ]
        return sorted(wanted, key=lambda run: run.seed)

    def identity(self, run: Run) -> str:
        """Identity of everything that a result depends on, besides code."""
        config = configure(run.variant.method, self.backbone, self._settings(run)).model_dump(mode="json")
        return run_identity(self.data, run.variant.method, config, self._prior(run), run.variant.reindex)

    def existing_result(self, run: Run) -> RunResult | None:
        """The result of an earlier campaign on the same data with the same settings."""
        found = read_result(result_path(self.out, run.variant.label, run.seed))
        return found if found is not None and found.run == self.identity(run) else None

    def execute(
        self,
        runs: Sequence[Run],
        *,
        jobs: int = 1,
        report: Callable[[Run, str], None] = lambda run, line: None,
        finished: Callable[[Run, str], None] = lambda run, error: None,
    ) -> list[tuple[Run, str]]:
        """Make the runs.

        Args:
            jobs: how many at once, each in a process of its own with one thread of torch; 1: here.
            report: called with lines about tasks that are done.
            finished: called when a run is done, with what went wrong or nothing.

        Returns:
            The runs that failed and why; they keep none of the others from being made.
        """
        failed: list[tuple[Run, str]] = []

        def finish(run: Run, error: str) -> None:
            if error:
                failed.append((run, error))
            finished(run, error)

        if jobs > 1:
            self._in_processes(runs, jobs, report, finish)
        else:
            loaded = load_backbone(self.backbone, self.frames).to(self.device) if runs else None
            for run in runs:
                finish(run, self._attempt(run, loaded, report))
        return failed

    def _attempt(self, run: Run, loaded: Backbone | None, report: Callable[[Run, str], None]) -> str:
        """Make one run and write its result; what went wrong, or nothing."""
        log = result_path(self.out, run.variant.label, run.seed).with_suffix(".error.txt")
        try:
            backbone = loaded or load_backbone(self.backbone, self.frames).to(self.device)
            outcome = run_method(
                run.variant.method,
                backbone,
                self.tasks,
                seed=run.seed,
                settings=self.protocol.settings_of(run.variant),
                prior=self._prior(run),
                reindex=run.variant.reindex,
                queries=self.protocol.queries,
                report=lambda line: report(run, line),
            )
        except Exception as error:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(traceback.format_exc(), encoding="utf-8")
            return f"{type(error).__name__}: {error} (all of it in {log})"
        log.unlink(missing_ok=True)
        meter = outcome.meter
        result = RunResult(
            protocol=self.protocol.name,
            label=run.variant.label,
            method=run.variant.method,
            seed=run.seed,
            data=self.data,
            run=self.identity(run),
            tasks=[task.task_id for task in self.tasks],
            rows=outcome.rows,
            steps=outcome.steps,
            losses=outcome.losses,
            before=outcome.before,
            seconds=meter.seconds,
            peak_mib=meter.peak_mib,
            peak_device_mib=meter.peak_device_mib,
            memory=meter.memory,
            settings=outcome.settings,
            facts=self.facts(run),
        )
        write_result(self.out, result)
        return ""

    def _in_processes(
        self,
        runs: Sequence[Run],
        jobs: int,
        report: Callable[[Run, str], None],
        finish: Callable[[Run, str], None],
    ) -> None:
        """Each run in a fresh process: its memory is its own, and if it dies the others live on."""
        # Spawned, not forked: this process holds threads of torch.
        context = multiprocessing.get_context("spawn")
        waiting = list(reversed(runs))
        busy: dict[Connection, tuple[Run, Any]] = {}
        while waiting or busy:
            while waiting and len(busy) < jobs:
                run = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(self, run, theirs), name=str(run), daemon=True)
                process.start()
                theirs.close()  # so that the end of the process is the end of the pipe
                busy[ours] = (run, process)
            for ready in [pipe for pipe in wait(list(busy)) if isinstance(pipe, Connection)]:
                run, process = busy[ready]
                try:
                    kind, text = ready.recv()
                except EOFError:
                    process.join()
                    kind, text = "done", f"the process died with exit status {process.exitcode}"
                if kind == "line":
                    report(run, text)
                    continue
                del busy[ready]
                ready.close()
                process.join()
                finish(run, text)

    def _settings(self, run: Run) -> dict[str, Any]:
        return {**self.protocol.settings_of(run.variant), "seed": run.seed}

    def _prior(self, run: Run) -> float:
        return self.protocol.prior if run.variant.prior is None else run.variant.prior

    def facts(self, run: Run) -> dict[str, Any]:
        """How a run came to be: command, commit, versions, machine."""
        packages = ("cinestrata", "torch", "open_clip_torch", "numpy")
        return {
            "command": self.command,
            "commit": _commit(),
            "versions": {"python": platform.python_version()}
            | {name: importlib.metadata.version(name) for name in packages},
            "machine": {
                "system": platform.platform(),
                "cpus": os.cpu_count(),
                "threads": torch.get_num_threads(),
                "device": torch.cuda.get_device_name() if self.device.startswith("cuda") else "cpu",
            },
            "backbone": {"name": self.backbone, "fingerprint": self.fingerprint, "frames": self.frames},
            "protocol": self.protocol.model_dump(mode="json", exclude={"methods"}),
            "prior": self._prior(run),
            "reindex": run.variant.reindex,
            "videos": {
                task.task_id: {"train": len(task.train), "val": len(task.val), "test": len(task.test)}
                for task in self.tasks
            },
        }


def _child(campaign: Campaign, run: Run, pipe: Connection) -> None:
    """A process of its own. Ctrl-C is for the parent, whose end is also the end of this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    error = campaign._attempt(run, None, lambda _, line: pipe.send(("line", line)))
    pipe.send(("done", error))
    pipe.close()


def _commit() -> str | None:
    """The commit that this code is of, with a plus when files were changed since; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        asked = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
