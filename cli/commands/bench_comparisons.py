"""``cinestrata bench clips``, ``captions`` and ``worlds``: measurements on real clips and on drawn worlds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from cli.commands.bench_campaigns import (
    DEFAULT_FOLDER,
    Cache,
    Device,
    ProtocolName,
    command_line,
    device_type,
    report_benchmark_errors,
)
from cli.console import console, progress_bar, report_errors

DomainFolder = Annotated[
    Path,
    typer.Argument(
        help="Folder with one subfolder per domain, each with clips and a manifest.", file_okay=False
    ),
]


class _Display(NamedTuple):
    """Functions that show the number of prepared clips, and a line above it."""

    progress: Callable[[int, int], None]
    report: Callable[[str], None]


@contextmanager
def _frames_display(unit: str) -> Iterator[_Display]:
    """Show a progress bar of the preparation of frames for the duration of the block."""
    with progress_bar(unit) as bar:
        frames = bar.add_task("Frames", total=None)
        yield _Display(
            lambda done, total: bar.update(frames, completed=done, total=total),
            lambda line: bar.console.print(line),
        )


@report_errors
def clips(
    folder: DomainFolder,
    methods: Annotated[
        str,
        typer.Option("--methods", metavar="A,B", help="Methods or variants, as for `cinestrata bench run`."),
    ] = "analytic",
    backbone: Annotated[str, typer.Option("--backbone", help="Backbone of the methods.")] = "small",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Runs per method; each but the first shuffles the domains.")
    ] = 1,
    out: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = DEFAULT_FOLDER / "clips",
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Compare methods on your own clips with a ridge regression on frozen image features.

    Each subfolder with a manifest is a domain. Clips with the split "test" are held out; without any split, a fifth of
    the clips is held out, at least 2. The rivals, one ridge per domain or one over all domains, read the same frames.
    Each is routed by words and by the routing evidence of the first method.
    """
    from benchmarks.clips.clip_comparison import compare_on_clips
    from benchmarks.learning.method_variants import select_variants
    from benchmarks.reporting.clip_report import write_clip_report

    with report_benchmark_errors():
        variants = select_variants((), methods.split(","))
        with _frames_display("clips") as display:
            runs, rivals = compare_on_clips(
                folder,
                variants,
                backbone=backbone,
                seeds=seeds,
                cache=cache,
                device=device_type(device),
                workers=min(os.cpu_count() or 1, 8),
                progress=display.progress,
                report=display.report,
            )
        table = write_clip_report(out, runs, rivals, command_line(), backbone)
    console.print(table, soft_wrap=True)
    console.print(f"Written to {out}.", soft_wrap=True)


@report_errors
def captions(
    folder: DomainFolder,
    counts: Annotated[
        str,
        typer.Option("--counts", metavar="N,M", help="Numbers of captioned training clips per domain."),
    ] = "5,10,20,40",
    method: Annotated[
        str, typer.Option("--method", help="Method or variant, as for `cinestrata bench run`.")
    ] = "analytic",
    backbone: Annotated[str, typer.Option("--backbone", help="Backbone of the method.")] = "small",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Runs per number; each selects other clips.")
    ] = 1,
    out: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = DEFAULT_FOLDER / "captions",
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Measure how recall on your own clips grows with the number of captioned clips.

    Folder and held-out clips are those of `cinestrata bench clips`. The last row has all captions.
    """
    from benchmarks.clips.caption_curve import measure_caption_curve
    from benchmarks.errors import ProtocolError
    from benchmarks.learning.method_variants import parse_variant
    from benchmarks.reporting.clip_report import write_caption_report

    with report_benchmark_errors():
        limits = [int(part) if part.strip().isdecimal() else 0 for part in counts.split(",")]
        if min(limits) < 1:
            raise ProtocolError(f"--counts: {counts!r} is not a list of positive numbers such as 5,10,20")
        variant = parse_variant(method)
        with _frames_display("clips") as display:
            points = measure_caption_curve(
                folder,
                variant,
                limits,
                backbone=backbone,
                seeds=seeds,
                cache=cache,
                device=device_type(device),
                workers=min(os.cpu_count() or 1, 8),
                progress=display.progress,
                report=display.report,
            )
        table = write_caption_report(out, points, command_line(), variant.label, backbone)
    console.print(table, soft_wrap=True)
    console.print(f"Written to {out}.", soft_wrap=True)


@report_errors
def worlds(
    protocol: ProtocolName,
    methods: Annotated[
        str | None,
        typer.Option("--methods", metavar="A,B", help="Methods or variants (default: the protocol's)."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", help="Backbone (default: the protocol's).")
    ] = None,
    count: Annotated[int, typer.Option("--worlds", min=1, help="Number of worlds.")] = 3,
    orders: Annotated[int, typer.Option("--orders", min=1, help="Orders of the domains of each world.")] = 2,
    out: Annotated[
        Path | None,
        typer.Option("--out", help=f"Folder of the results (default: {DEFAULT_FOLDER}/<protocol>-worlds)."),
    ] = None,
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Compare methods with joint training on several worlds and orders of their domains.

    Each world has other videos and other senses of its shared words. The first order is that of the names of the
    domains, further orders are shuffled.
    """
    from benchmarks.learning.method_variants import select_variants
    from benchmarks.learning.protocol import load_protocol
    from benchmarks.world_comparison import WorldRun, compare_worlds, write_world_report

    with report_benchmark_errors():
        plan = load_protocol(protocol)
        name, folder = backbone or plan.backbone, out or DEFAULT_FOLDER / f"{plan.name}-worlds"
        runs: list[WorldRun] = []
        with _frames_display("runs") as display:
            for run in compare_worlds(
                plan,
                select_variants(plan.methods, methods.split(",") if methods else None),
                backbone=name,
                worlds=count,
                orders=orders,
                cache=cache,
                device=device_type(device),
                progress=display.progress,
                report=display.report,
            ):
                runs.append(run)
                table = write_world_report(folder, runs, command_line(), name)
    console.print(table, soft_wrap=True)
    console.print(f"Written to {folder}.", soft_wrap=True)
