"""``cinestrata bench tune``: the same learning-rate trials for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.bench_campaigns import (
    DEFAULT_FOLDER,
    Cache,
    Device,
    Jobs,
    Tasks,
    Videos,
    execute_runs,
    fail_for,
    prepare_campaign,
    report_benchmark_errors,
)
from cli.console import console, report_errors


@report_errors
def tune(
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD…", help="Methods or variants, as for `cinestrata bench run`."),
    ],
    protocol: Annotated[
        str, typer.Option("--protocol", help="Protocol whose data no reported table uses.")
    ] = "world-dev",
    out: Annotated[
        Path | None,
        typer.Option("--out", help=f"Folder of the results (default: {DEFAULT_FOLDER}/<protocol>-tuning)."),
    ] = None,
    videos: Videos = None,
    tasks: Tasks = None,
    jobs: Jobs = 1,
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Measure the same learning-rate factors for every method, and log all trials.

    Each trial multiplies all learning rates of a method's recipe by one factor, with one seed. The log tuning.json
    keeps the trials of earlier calls with the same data.
    """
    from benchmarks.learning.method_variants import select_variants
    from benchmarks.learning.protocol import load_protocol
    from benchmarks.learning.tuning_trials import trial_variants, write_tuning_log
    from benchmarks.reporting.markdown_tables import tuning_table

    with report_benchmark_errors():
        plan = load_protocol(protocol)
        trials = {
            variant.label: trial_variants(variant, plan) for variant in select_variants(plan.methods, methods)
        }
        folder = out or DEFAULT_FOLDER / f"{plan.name}-tuning"
        campaign = prepare_campaign(plan, plan.backbone, folder, cache, videos, tasks, device)
        runs = campaign.runs([variant for variants in trials.values() for variant in variants], 1)
        failed = execute_runs(campaign, runs, jobs=jobs)
        log = write_tuning_log(campaign, trials)
        console.print(tuning_table(log), soft_wrap=True)
        console.print(f"Written to {folder}.", soft_wrap=True)
        fail_for(failed, len(runs))
