"""Run all of a benchmark protocol: keep existing results, and execute missing runs, several in parallel.

Each result is written when its run ends, so an interrupted campaign loses only the runs in progress.
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

from benchmarks.learning.labeled_pairs import LabeledTask
from benchmarks.learning.method_runner import run_method
from benchmarks.learning.protocol import MethodVariant, Protocol
from benchmarks.learning.run_progress import REPORT_SECONDS
from benchmarks.learning.run_results import RunResult, read_result, result_path, write_result
from benchmarks.rivals import METHODS, configure
from cinestrata_schemas import __version__
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from trainer.task_data import TaskData
from trainer.training_checkpoint import run_identity


@dataclass(frozen=True)
class Run:
    """One run in a campaign: a method variant with one seed."""

    variant: MethodVariant
    seed: int

    def __str__(self) -> str:
        return f"{self.variant.label}, seed {self.seed}"


@dataclass(frozen=True)
class Campaign:
    """Data and settings for all runs of a protocol. Instances are pickled for the runs' processes.

    Attributes:
        tasks: Prepared tasks, with their frames in the cache.
        device: ``cpu`` or ``cuda``.
        command: Command line, for the report.
        report_seconds: Longest time that a run goes without a line of progress.
    """

    protocol: Protocol
    tasks: Sequence[TaskData]
    backbone: str
    fingerprint: str
    frames: int
    device: str
    out: Path
    command: str
    report_seconds: float = REPORT_SECONDS

    @property
    def data(self) -> str:
        """Identity of the evaluated data: backbone, frames, queries, videos and labeled pairs."""
        videos = [
            [(c.id, c.split, c.captions, c.frames_path.name) for c in task.clips] for task in self.tasks
        ]
        pairs = [
            [
                (c.id, c.category, c.captions, c.frames_path.name)
                for c in (*task.pair_queries, *task.pair_gallery)
            ]
            for task in self.tasks
            if isinstance(task, LabeledTask)
        ]
        labeled = (pairs,) if pairs else ()
        return run_identity(self.fingerprint, self.frames, self.protocol.queries, videos, *labeled)

    def runs(self, variants: Sequence[MethodVariant], seeds: int | None = None) -> list[Run]:
        """List the runs of every variant with every seed, ordered by seed so that a complete table is available early.

        A method without training has one run, since its seed has no effect.

        Args:
            seeds: Number of seeds per variant; by default the variant's, or else the protocol's.
        """
        runs = [
            Run(variant, seed)
            for variant in variants
            for seed in range(
                (seeds or variant.seeds or self.protocol.seeds) if METHODS[variant.method].is_trainable else 1
            )
        ]
        return sorted(runs, key=lambda run: run.seed)

    def identity(self, run: Run) -> str:
        """Digest everything that determines a result except the code: data, method, settings, prior and re-indexing."""
        config = configure(run.variant.method, self.backbone, self._settings(run)).model_dump(mode="json")
        variant = run.variant
        scheme = ["jointly"] if variant.jointly else []
        scheme += [] if variant.mixed_batches else ["separate batches"]
        return run_identity(self.data, variant.method, config, self._prior(run), variant.reindex, *scheme)

    def existing_result(self, run: Run) -> RunResult | None:
        """Read the result of a previous campaign on the same data with the same settings; None if there is none."""
        result = read_result(result_path(self.out, run.variant.label, run.seed))
        return result if result is not None and result.run == self.identity(run) else None

    def execute(
        self,
        runs: Sequence[Run],
        *,
        jobs: int = 1,
        report: Callable[[Run, str], None] = lambda run, line: None,
        finished: Callable[[Run, str], None] = lambda run, error: None,
    ) -> list[tuple[Run, str]]:
        """Execute runs and write their results. A failed run does not stop the others.

        Args:
            jobs: Number of concurrent runs, each in its own process with one torch thread; 1 uses this process.
            report: Called with one line per finished task, and in between with a run's state at least every
                ``report_seconds``, possibly from another thread.
            finished: Called after each run with its error, or an empty string.

        Returns:
            The failed runs with their errors.
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
        """Execute one run and write its result; returns the error, or an empty string."""
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
                jointly=run.variant.jointly,
                mixed_batches=run.variant.mixed_batches,
                queries=self.protocol.queries,
                report=lambda line: report(run, line),
                report_seconds=self.report_seconds,
            )
        except Exception as error:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(traceback.format_exc(), encoding="utf-8")
            return f"{type(error).__name__}: {error} (traceback in {log})"
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
            parameters=outcome.parameters,
            settings=outcome.settings,
            facts=self.run_facts(run, backbone.engine),
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
        """Execute each run in a new process, so that its memory is measured alone and a crash affects no other run."""
        # Processes are spawned, not forked: this one has torch threads.
        context = multiprocessing.get_context("spawn")
        pending = list(reversed(runs))
        active: dict[Connection, tuple[Run, Any]] = {}
        while pending or active:
            while pending and len(active) < jobs:
                run = pending.pop()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run_in_child, args=(self, run, sender), name=str(run), daemon=True
                )
                process.start()
                sender.close()  # so that the pipe closes when the process exits
                active[receiver] = (run, process)
            for ready in [pipe for pipe in wait(list(active)) if isinstance(pipe, Connection)]:
                run, process = active[ready]
                try:
                    kind, text = ready.recv()
                except EOFError:
                    process.join()
                    kind, text = "done", f"the process died with exit status {process.exitcode}"
                if kind == "line":
                    report(run, text)
                    continue
                del active[ready]
                ready.close()
                process.join()
                finish(run, text)

    def _settings(self, run: Run) -> dict[str, Any]:
        return {**self.protocol.settings_of(run.variant), "seed": run.seed}

    def _prior(self, run: Run) -> float:
        return self.protocol.prior if run.variant.prior is None else run.variant.prior

    def run_facts(self, run: Run, engine: str) -> dict[str, Any]:
        """Record a run's circumstances for its report: command, commit, versions, machine, protocol, sizes.

        Args:
            engine: Library in which the frozen towers ran.
        """
        packages = ("torch", "open_clip_torch", "numpy")
        return {
            "command": self.command,
            "commit": _commit(),
            "versions": {"python": platform.python_version(), "cinestrata": __version__}
            | {name: importlib.metadata.version(name) for name in packages},
            "machine": {
                "system": platform.platform(),
                "cpus": os.cpu_count(),
                "threads": torch.get_num_threads(),
                "device": torch.cuda.get_device_name() if self.device.startswith("cuda") else "cpu",
            },
            "backbone": {
                "name": self.backbone,
                "fingerprint": self.fingerprint,
                "frames": self.frames,
                "engine": engine,
            },
            "protocol": self.protocol.model_dump(mode="json", exclude={"methods"}),
            "prior": self._prior(run),
            "reindex": run.variant.reindex,
            "jointly": run.variant.is_joint,
            "mixed_batches": run.variant.mixed_batches,
            "videos": {
                task.task_id: {"train": len(task.train), "val": len(task.val), "test": len(task.test)}
                for task in self.tasks
            },
        }


def _run_in_child(campaign: Campaign, run: Run, pipe: Connection) -> None:
    """Run in a child process. It ignores Ctrl-C: the parent handles it, and daemons end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    error = campaign._attempt(run, None, lambda _, line: pipe.send(("line", line)))
    pipe.send(("done", error))
    pipe.close()


def _commit() -> str | None:
    """Find this checkout's commit, with a plus sign if files are modified; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        completed = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
        return completed.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
