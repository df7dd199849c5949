"""``cinestrata bench``: comparisons of learning methods under a protocol, and pre-training of the shipped weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from cli.commands.bench_campaigns import (
    DEFAULT_FOLDER,
    Cache,
    Device,
    Jobs,
    Seeds,
    Tasks,
    Videos,
    command_line,
    device_type,
    execute_runs,
    fail_for,
    prepare_campaign,
    report_benchmark_errors,
)
from cli.commands.bench_comparisons import captions, clips, worlds
from cli.commands.bench_tuning import tune
from cli.console import console, progress_bar, report_errors

app = typer.Typer(
    help="Compare learning methods under a protocol, and pre-train the shipped weights.", no_args_is_help=True
)

for command in (clips, captions, worlds, tune):
    app.command()(command)


@app.command()
@report_errors
def run(
    protocol: Annotated[
        str | None,
        typer.Argument(
            help="Name of a protocol, or the path of a .yaml file (default: list the protocols).",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="A,B",
            help="Methods or variants, for example finetune@learning_rate=1e-4@reindex=true (default: the protocol's).",
        ),
    ] = None,
    seeds: Seeds = None,
    tasks: Tasks = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help=f"Folder for the results (default: {DEFAULT_FOLDER}/<protocol>)."),
    ] = None,
    videos: Videos = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", help="Backbone (default: the protocol's).")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Setting of every method.")
    ] = None,
    prior: Annotated[
        float | None,
        typer.Option(
            "--prior", min=0, help="Weight of the routing evidence; 0 merges raw cosines, as in the papers."
        ),
    ] = None,
    reindex: Annotated[
        bool,
        typer.Option(
            "--reindex", help="Embed all galleries again with the current encoder after every task."
        ),
    ] = False,
    jobs: Jobs = 1,
    again: Annotated[bool, typer.Option("--again", help="Repeat runs that already have results.")] = False,
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Learn a sequence of tasks with each method, and compare recall and forgetting.

    The state of each run is printed at least every 30 seconds. Finished runs are kept: after an interruption, the same
    command continues with the missing runs.
    """
    from benchmarks.learning.method_variants import parse_assignment, select_variants
    from benchmarks.learning.protocol import load_protocol
    from benchmarks.learning.run_results import read_results
    from benchmarks.reporting.benchmark_report import recall_tables
    from benchmarks.rivals import configure

    if protocol is None:
        _list_protocols()
        return
    with report_benchmark_errors():
        plan = load_protocol(protocol)
        overrides = dict(map(parse_assignment, assignments or ()))
        overrides |= {"reindex": True} if reindex else {}
        overrides |= {} if prior is None else {"prior": prior}
        entries = select_variants(plan.methods, methods.split(",") if methods else None, overrides)
        chosen_backbone = backbone or plan.backbone
        for entry in entries:  # validates the settings before videos are decoded
            configure(entry.method, chosen_backbone, plan.settings_of(entry))
        folder = out or DEFAULT_FOLDER / plan.name
        campaign = prepare_campaign(plan, chosen_backbone, folder, cache, videos, tasks, device)
        runs = campaign.runs(entries, seeds)
        failed = execute_runs(campaign, runs, jobs=jobs, again=again)
        if len(failed) < len(runs):
            table = recall_tables(read_results(folder, campaign.data))
            (folder / "table.md").write_text(table, encoding="utf-8")
            console.print(table, soft_wrap=True)
            console.print(f"Written to {folder}. Figures: cinestrata bench report {folder}", soft_wrap=True)
        fail_for(failed, len(runs))


def _list_protocols() -> None:
    from benchmarks.learning.protocol import load_protocol, protocol_names

    width = max(map(len, protocol_names()))
    for name in protocol_names():
        protocol = load_protocol(name)
        console.print(f"{name:{width}}  {protocol.title}, {protocol.backbone}")


@app.command()
@report_errors
def routing(
    splits: Annotated[
        list[str],
        typer.Argument(
            help="Published splits as JSON, for example actnet-10.json, and protocols that render their videos."
        ),
    ],
    backbone: Annotated[
        str, typer.Option("--backbone", help="Backbone whose tokens and text vectors are used.")
    ] = "small",
    out: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = DEFAULT_FOLDER / "routing",
) -> None:
    """Measure how often captions of published splits or of protocols are routed to their own task.

    Tasks are defined by training captions, and test captions are routed. A split without training captions is divided
    into two folds of its test captions.
    """
    from benchmarks.learning.protocol import load_protocol
    from benchmarks.routing.caption_splits import protocol_captions, read_captions
    from benchmarks.routing.routing_comparison import TextEncoder, compare_routing, routing_table
    from models.backbones.backbone_loading import load_backbone

    with report_benchmark_errors():
        captions = {
            Path(split).stem: read_captions(Path(split))
            if split.endswith(".json")
            else protocol_captions(load_protocol(split))
            for split in splits
        }
        encoder = TextEncoder(load_backbone(backbone))
        results = [compare_routing(name, fold, encoder) for name, fold in captions.items()]
    table = routing_table(results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(f"    {command_line()}\n\n{table}", encoding="utf-8")
    console.print(table, soft_wrap=True)
    console.print(f"Written to {out}.", soft_wrap=True)


@app.command()
@report_errors
def speed(
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone",
            help="Backbone, or open_clip:<model>/random for random weights of that architecture.",
        ),
    ] = "tiny",
    method: Annotated[str, typer.Option("--method", help="Learning method.")] = "ffa_tame",
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Pairs per step (default: the method's).")
    ] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", min=1, help="Frames per video (default: the backbone's).")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps per run.")] = 5,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs per variant.")] = 5,
    device: Device = "auto",
    out: Annotated[Path, typer.Option("--out", help="Folder for videos and results.")] = DEFAULT_FOLDER
    / "speed",
) -> None:
    """Compare the speed of the training loop with a plain loop, and measure each of its optimizations."""
    from benchmarks.learning.training_speed import SpeedPlan, measure_speed, speed_table

    plan = SpeedPlan(backbone, method, batch, frames, steps, repeats, device_type(device))
    with report_benchmark_errors(), progress_bar("runs") as bar:
        progress = bar.add_task("Measuring", total=None)
        result = measure_speed(
            plan,
            out / "videos",
            report=lambda done, total: bar.update(progress, completed=done, total=total),
        )
    result.save(out)
    console.print(speed_table(result), soft_wrap=True)
    console.print(f"Written to {out}.", soft_wrap=True)


@app.command()
@report_errors
def report(
    folder: Annotated[
        Path, typer.Argument(help="Folder of results that `cinestrata bench run` wrote.", file_okay=False)
    ],
) -> None:
    """Write tables and figures of all results in a folder: report.md and figures.html."""
    from benchmarks.reporting.benchmark_report import write_report

    with report_benchmark_errors():
        written = write_report(folder)
    console.print(f"{written}, {written.with_name('figures.html')}", soft_wrap=True)


@app.command()
@report_errors
def pretrain(
    out: Annotated[Path, typer.Option("--out", help="File of the weights.")] = Path(
        "models/backbones/tiny/weights.safetensors"
    ),
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="Number of processes that render videos.")
    ] = 1,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Number of training steps (default: the recipe's).")
    ] = None,
) -> None:
    """Pre-train the `tiny` backbone from random weights."""
    from benchmarks.learning.pretraining_recipe import PretrainingRecipe, pretrain

    recipe = PretrainingRecipe() if steps is None else PretrainingRecipe(steps=steps)
    out.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with progress_bar("steps") as bar:
        progress = bar.add_task("Pre-training", total=recipe.steps)

        def report(step: int, loss: float) -> None:
            bar.update(progress, completed=step, description=f"Pre-training (loss {loss:.3f})")

        pretrain(out, recipe, device=device, workers=workers, report=report)
    console.print(f"{out} ({out.stat().st_size / 1e6:.1f} MB) after {time.monotonic() - started:.0f} s.")
