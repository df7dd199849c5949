"""Options and preparation that the commands of ``cinestrata bench`` share."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import console, fail, progress_bar

if TYPE_CHECKING:
    from benchmarks.learning.campaign import Campaign, Run
    from benchmarks.learning.protocol import Protocol


DEFAULT_FOLDER = Path("cinestrata-data/bench")
ProtocolName = Annotated[
    str, typer.Argument(help="Name (see `cinestrata bench run`), or the path of a .yaml file.")
]
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Number of runs per method (default: the protocol's).")
]
Tasks = Annotated[int | None, typer.Option("--tasks", min=1, help="Number of tasks to learn (default: all).")]
Videos = Annotated[
    Path | None, typer.Option("--videos", help="Folder of the videos, for protocols that need videos.")
]
Cache = Annotated[Path, typer.Option("--cache", help="Folder of rendered and decoded frames.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto (a GPU if available).")]
Jobs = Annotated[
    int, typer.Option("--jobs", min=1, help="Concurrent runs, each in a process with one torch thread.")
]


def prepare_campaign(
    plan: Protocol,
    backbone: str,
    out: Path,
    cache: Path,
    videos: Path | None,
    tasks: int | None,
    device: str,
) -> Campaign:
    """The runs of a protocol, with the frames of its videos in the cache."""
    from benchmarks.learning.campaign import Campaign
    from benchmarks.learning.run_progress import RunProgress
    from benchmarks.learning.task_preparation import prepare_tasks
    from models.backbones.backbone_loading import frame_spec, load_backbone

    with progress_bar("videos") as bar, RunProgress(lambda line: bar.console.print(line)) as lines:
        progress = bar.add_task("Frames", total=None)

        def report(done: int, total: int) -> None:
            bar.update(progress, completed=done, total=total)
            lines.update(f"frames of {done} of {total} videos")

        prepared = prepare_tasks(
            plan,
            frame_spec(backbone, plan.frames),
            cache,
            videos=videos,
            tasks=tasks,
            workers=min(os.cpu_count() or 1, 8),
            progress=report,
        )
    loaded = load_backbone(backbone, plan.frames)
    return Campaign(
        protocol=plan,
        tasks=prepared,
        backbone=loaded.name,
        fingerprint=loaded.fingerprint,
        frames=loaded.spec.frames,
        device=device_type(device),
        out=out,
        command=command_line(),
    )


def execute_runs(
    campaign: Campaign, runs: Sequence[Run], *, jobs: int, again: bool = False
) -> list[tuple[Run, str]]:
    """Execute the runs that have no result yet, and print their progress.

    Args:
        campaign: Data and settings of the runs.
        jobs: Number of concurrent runs.
        again: Whether to repeat runs that already have results.

    Returns:
        The failed runs with their errors.
    """
    finished_runs = [] if again else [run for run in runs if campaign.existing_result(run)]
    if finished_runs:
        console.print(f"{len(finished_runs)} of {len(runs)} runs already have results; --again repeats them.")
    with progress_bar("runs") as bar:
        progress = bar.add_task("Measuring", total=len(runs), completed=len(finished_runs))

        def report(run: Run, line: str) -> None:
            bar.console.print(f"{run}: {line}")

        def on_finished(run: Run, error: str) -> None:
            bar.advance(progress)
            if error:
                bar.console.print(f"{run} failed: {error}", soft_wrap=True)

        pending = [run for run in runs if run not in finished_runs]
        return campaign.execute(pending, jobs=jobs, report=report, finished=on_finished)


def fail_for(failed: Sequence[tuple[Run, str]], total: int) -> None:
    """Exit with status 1 and the errors of the failed runs, if there are any."""
    if failed:
        errors = "\n".join(f"{run}: {error}" for run, error in failed)
        fail(f"{len(failed)} of {total} runs failed.", errors)


def command_line() -> str:
    """Command line of this process, for reports."""
    return shlex.join(["cinestrata", *sys.argv[1:]])


@contextmanager
def report_benchmark_errors() -> Iterator[None]:
    """Exit with a sentence for errors of protocols, methods and backbones, instead of a traceback."""
    from benchmarks.errors import ProtocolError
    from models.errors import ModelError
    from trainer.errors import TrainingError
    from trainer.methods import MethodError

    try:
        yield
    except (ProtocolError, MethodError, ModelError, TrainingError) as error:
        fail(str(error))


def device_type(name: str) -> str:
    """Type of the device of this name; ``auto`` selects a GPU if there is one."""
    from models.backbones.precision import compute_device

    with report_benchmark_errors():
        return compute_device(name).type
