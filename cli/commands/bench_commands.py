"""``cinestrata bench``: measure methods side by side under a protocol, and make the shipped weights anew."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import console, fail, progress_bar, report_errors

if TYPE_CHECKING:
    from benchmarks.learning.campaign import Campaign, Run
    from benchmarks.learning.protocol import Protocol

__all__ = ["app"]

app = typer.Typer(
    help="Measure methods side by side, and make the shipped weights anew.", no_args_is_help=True
)

_HOME = Path("cinestrata-data/bench")
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto: a GPU where there is one.")]


@app.command()
@report_errors
def protocols() -> None:
    """List what can be measured."""
    from benchmarks.learning.protocol import load_protocol, protocol_names

    width = max(map(len, protocol_names()))
    for name in protocol_names():
        protocol = load_protocol(name)
        console.print(f"{name:{width}}  {protocol.title}, {protocol.backbone}", markup=False)


@app.command()
@report_errors
def run(
    protocol: Annotated[
        str, typer.Argument(help="Name (see `cinestrata bench protocols`), or the path of a .yaml file.")
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="A,B",
            help="Methods, or variants as in finetune@learning_rate=1e-4@reindex=true (default: the protocol's).",
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Runs of each method.")] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", min=1, help="Learn the first ones only.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help=f"Folder of the results (default: {_HOME}/<protocol>).")
    ] = None,
    videos: Annotated[
        Path | None, typer.Option("--videos", help="Folder of the videos, where the protocol needs some.")
    ] = None,
    backbone: Annotated[str | None, typer.Option("--backbone", help="Instead of the protocol's.")] = None,
    chosen: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of every method.")
    ] = None,
    prior: Annotated[
        float | None,
        typer.Option("--prior", min=0, help="Of routing; 0 merges raw cosines, as in the papers."),
    ] = None,
    reindex: Annotated[
        bool,
        typer.Option(
            "--reindex", help="Embed all galleries again after every task, with the current encoder."
        ),
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Runs at once, each in a process with one thread of torch.")
    ] = 1,
    again: Annotated[bool, typer.Option("--again", help="Make results anew that are there already.")] = False,
    device: Device = "auto",
    cache: Annotated[Path, typer.Option("--cache", help="Folder of drawn and decoded frames.")] = (
        _HOME / "frames"
    ),
) -> None:
    """Learn a sequence of tasks with each method, and compare what is found and what is forgotten.

    What is done stays done: stop it at any time, and the same command goes on with the runs that are missing.
    """
    from benchmarks.learning.method_variants import choose, parse_assignment
    from benchmarks.learning.protocol import load_protocol
    from benchmarks.learning.run_results import read_results
    from benchmarks.reporting.report import tables
    from trainer.methods import configure

    with _told():
        plan = load_protocol(protocol)
        overrides = dict(map(parse_assignment, chosen or ()))
        overrides |= {"reindex": True} if reindex else {}
        overrides |= {} if prior is None else {"prior": prior}
        entries = choose(plan.methods, methods.split(",") if methods else None, overrides)
        chosen_backbone = backbone or plan.backbone
        for entry in entries:  # before anything is decoded
            configure(entry.method, chosen_backbone, plan.settings_of(entry))
        place = out or _HOME / plan.name
        campaign = _campaign(plan, chosen_backbone, place, cache, videos, tasks, device)
        runs = campaign.runs(entries, seeds)
        kept = [] if again else [one for one in runs if campaign.done(one)]
        if kept:
            console.print(
                f"{len(kept)} of {len(runs)} results are there already and kept; --again makes them anew."
            )
        with progress_bar("runs") as bar:
            measuring = bar.add_task("Measuring", total=len(runs), completed=len(kept))

            def report(one: Run, line: str) -> None:
                bar.console.print(f"{one}: {line}", markup=False)

            def finished(one: Run, error: str) -> None:
                bar.advance(measuring)
                if error:
                    bar.console.print(f"{one} failed: {error}", markup=False, soft_wrap=True)

            todo = [one for one in runs if one not in kept]
            failed = campaign.execute(todo, jobs=jobs, report=report, finished=finished)
        if len(failed) < len(runs):
            told = tables(read_results(place, campaign.data))
            (place / "table.md").write_text(told, encoding="utf-8")
            console.print(told, markup=False, soft_wrap=True)
            console.print(f"Written to {place}. Figures: cinestrata bench report {place}", soft_wrap=True)
        if failed:
            fail(f"{len(failed)} of {len(runs)} runs failed.", "\n".join(f"{o}: {e}" for o, e in failed))


@app.command()
@report_errors
def merging(
    protocol: Annotated[str, typer.Argument(help="As for `cinestrata bench run`.")],
    method: Annotated[
        str, typer.Option("--method", help="That learns the tasks, as in ffa_tame@learning_rate=1e-3.")
    ] = "ffa_tame",
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Runs (default: the protocol's).")
    ] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", min=1, help="Learn the first ones only.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help=f"Folder of the results (default: {_HOME}/<protocol>-merging)."),
    ] = None,
    videos: Annotated[
        Path | None, typer.Option("--videos", help="Folder of the videos, where the protocol needs some.")
    ] = None,
    device: Device = "auto",
    cache: Annotated[Path, typer.Option("--cache", help="Folder of drawn and decoded frames.")] = (
        _HOME / "frames"
    ),
) -> None:
    """Compare ways to merge scores of shards, to route, to query and to pool frames, on the vectors of one method.

    Every caption of every held-out video searches the shards of all tasks after the last one. Nothing is calibrated on
    them: that takes captions of training and validation videos.
    """
    from benchmarks.learning.method_variants import choose
    from benchmarks.learning.protocol import load_protocol
    from benchmarks.merging.comparison import compare
    from benchmarks.merging.merging_tables import tables
    from models.backbones.backbone_loading import load_backbone
    from trainer.methods import configure

    with _told():
        plan = load_protocol(protocol)
        (entry,) = choose(plan.methods, [method])
        configure(entry.method, plan.backbone, plan.settings_of(entry))
        place = out or _HOME / f"{plan.name}-merging"
        campaign = _campaign(plan, plan.backbone, place, cache, videos, tasks, device)
        backbone = load_backbone(campaign.backbone, campaign.frames).to(campaign.device)
        count = seeds or entry.seeds or plan.seeds
        runs = []
        with progress_bar("runs") as bar:
            measuring = bar.add_task("Measuring", total=count)
            for seed in range(count):

                def report(line: str, seed: int = seed) -> None:
                    bar.console.print(f"{entry.label}, seed {seed}: {line}", markup=False)

                runs.append(compare(campaign, entry, backbone, seed, report))
                bar.advance(measuring)
        told = tables(runs)
        (place / "table.md").write_text(f"    {campaign.command}\n\n{told}", encoding="utf-8")
        console.print(told, markup=False, soft_wrap=True)
        console.print(f"Written to {place}.", soft_wrap=True)


@app.command()
@report_errors
def speed(
    backbone: Annotated[
        str, typer.Option("--backbone", help="A name, or open_clip:<model>/random for its shape alone.")
    ] = "tiny",
    method: Annotated[str, typer.Option("--method", help="That learns.")] = "ffa_tame",
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Pairs in a step (default: the method's).")
    ] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", min=1, help="Of a video (default: the backbone's).")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Of a run.")] = 5,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of every loop.")] = 5,
    device: Device = "auto",
    out: Annotated[Path, typer.Option("--out", help="Folder of videos and results.")] = _HOME / "speed",
) -> None:
    """Compare the product's training loop with the straightforward one, and say what each of its devices brings."""
    from benchmarks.learning.training_speed import Plan, measure, table

    plan = Plan(backbone, method, batch, frames, steps, repeats, _device(device))
    with _told(), progress_bar("runs") as bar:
        measuring = bar.add_task("Measuring", total=None)
        found = measure(
            plan,
            out / "videos",
            report=lambda done, total: bar.update(measuring, completed=done, total=total),
        )
    found.save(out)
    console.print(table(found), markup=False, soft_wrap=True)
    console.print(f"Written to {out}.", soft_wrap=True)


@app.command()
@report_errors
def report(
    folder: Annotated[Path, typer.Argument(help="What `cinestrata bench run` wrote to.", file_okay=False)],
) -> None:
    """Draw tables and figures of all results in a folder: report.md and figures.html."""
    from benchmarks.reporting.report import write_report

    with _told():
        written = write_report(folder)
    console.print(f"{written}, {written.with_name('figures.html')}", soft_wrap=True)


@app.command()
@report_errors
def pretrain(
    out: Annotated[Path, typer.Option("--out", help="Where the weights go.")] = Path(
        "models/backbones/tiny/weights.safetensors"
    ),
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    workers: Annotated[int, typer.Option("--workers", min=0, help="Processes that render videos.")] = 1,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Fewer than the recipe's, for a try.")
    ] = None,
) -> None:
    """Train the `tiny` backbone from nothing."""
    from benchmarks.learning.pretraining_recipe import Recipe, pretrain

    recipe = Recipe() if steps is None else Recipe(steps=steps)
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with progress_bar("steps") as bar:
        training = bar.add_task("Pre-training", total=recipe.steps)

        def report(step: int, loss: float) -> None:
            bar.update(training, completed=step, description=f"Pre-training (loss {loss:.3f})")

        pretrain(out, recipe, device=device, workers=workers, report=report)
    console.print(f"{out} ({out.stat().st_size / 1e6:.1f} MB) after {time.monotonic() - began:.0f} s.")


def _campaign(
    plan: Protocol,
    backbone: str,
    out: Path,
    cache: Path,
    videos: Path | None,
    tasks: int | None,
    device: str,
) -> Campaign:
    """What is to be run, with the frames of its videos in the cache."""
    from benchmarks.learning.campaign import Campaign
    from benchmarks.learning.preparation import prepare
    from models.backbones.backbone_loading import frame_spec, load_backbone

    with progress_bar("videos") as bar:
        making = bar.add_task("Frames", total=None)
        prepared = prepare(
            plan,
            frame_spec(backbone, plan.frames),
            cache,
            videos=videos,
            tasks=tasks,
            workers=min(os.cpu_count() or 1, 8),
            progress=lambda done, total: bar.update(making, completed=done, total=total),
        )
    loaded = load_backbone(backbone, plan.frames)
    return Campaign(
        protocol=plan,
        tasks=prepared,
        backbone=loaded.name,
        fingerprint=loaded.fingerprint,
        frames=loaded.spec.frames,
        device=_device(device),
        out=out,
        command=shlex.join(["cinestrata", *sys.argv[1:]]),
    )


@contextmanager
def _told() -> Iterator[None]:
    """Errors of protocols, methods and backbones as sentences."""
    from benchmarks.errors import ProtocolError
    from models.errors import ModelError
    from trainer.errors import TrainingError
    from trainer.methods import MethodError

    try:
        yield
    except (ProtocolError, MethodError, ModelError, TrainingError) as error:
        fail(str(error))


def _device(asked: str) -> str:
    from models.backbones.precision import compute_device

    with _told():
        return compute_device(asked).type
