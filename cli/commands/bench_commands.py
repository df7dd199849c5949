"""``cinestrata bench``: compare learning methods under a protocol, and on your own clips."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cli.console import console, fail, progress_bar, refuse_call, report_errors

if TYPE_CHECKING:
    from benchmarks.learning.campaign import Campaign, Run
    from benchmarks.learning.protocol import Protocol

app = typer.Typer(
    help="Compare learning methods under a protocol, or on your own clips.", no_args_is_help=True
)

DEFAULT_FOLDER = Path("cinestrata-data/bench")
Seeds = Annotated[
    int | None, typer.Option("--seeds", min=1, help="Number of runs per method (default: the protocol's).")
]
Tasks = Annotated[int | None, typer.Option("--tasks", min=1, help="Number of tasks to learn (default: all).")]
Videos = Annotated[
    Path | None, typer.Option("--videos", help="Folder with the videos, for protocols that need them.")
]
Cache = Annotated[Path, typer.Option("--cache", help="Folder for rendered and decoded frames.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto (a GPU if available).")]
Jobs = Annotated[
    int,
    typer.Option("--jobs", min=1, help="Number of concurrent runs, each in a process with one torch thread."),
]
DomainFolder = Annotated[
    Path,
    typer.Argument(
        help="Folder with one subfolder per domain, each with clips and a manifest.", file_okay=False
    ),
]


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
        typer.Option("--reindex", help="Re-embed all galleries with the current encoder after every task."),
    ] = False,
    jobs: Jobs = 1,
    again: Annotated[bool, typer.Option("--again", help="Repeat runs that already have results.")] = False,
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Learn a sequence of tasks with each method, and compare recall and forgetting.

    Prints the state of each run at least every 30 seconds. Finished runs are kept: after an interruption, the same
    command continues with the missing runs. The report covers all runs in the folder, including earlier ones.
    """
    from benchmarks.learning.protocol import load_protocol, parse_assignment, select_variants
    from benchmarks.learning.run_results import read_results
    from benchmarks.reporting.benchmark_report import recall_tables, write_report
    from benchmarks.rivals import configure

    if protocol is None:
        _list_protocols()
        return
    with _report_benchmark_errors():
        plan = load_protocol(protocol)
        overrides = dict(map(parse_assignment, assignments or ()))
        overrides |= {"reindex": True} if reindex else {}
        overrides |= {} if prior is None else {"prior": prior}
        entries = select_variants(plan.methods, methods.split(",") if methods else None, overrides)
        chosen_backbone = backbone or plan.backbone
        for entry in entries:  # validates the settings before videos are decoded
            configure(entry.method, chosen_backbone, plan.settings_of(entry))
        folder = out or DEFAULT_FOLDER / plan.name
        campaign = _prepare_campaign(plan, chosen_backbone, folder, cache, videos, tasks, device)
        runs = campaign.runs(entries, seeds)
        failed = _execute_runs(campaign, runs, jobs=jobs, again=again)
        if len(failed) < len(runs):
            results = read_results(folder, campaign.data)
            report = write_report(folder, results)
            console.print(recall_tables(results), soft_wrap=True)
            console.print(f"Written to {report}.", soft_wrap=True)
        if failed:
            errors = "\n".join(f"{run}: {error}" for run, error in failed)
            fail(f"{len(failed)} of {len(runs)} runs failed.", errors)


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
        list[Path],
        typer.Argument(help="Published splits as JSON, such as actnet-10.json."),
    ],
    backbone: Annotated[
        str, typer.Option("--backbone", help="Backbone that supplies tokens and text vectors.")
    ] = "small",
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = DEFAULT_FOLDER / "routing",
) -> None:
    """Measure how often captions from published splits are routed to their own task.

    Training captions define the tasks, and test captions are routed. Without training captions, the test captions of a
    split are divided into two folds.
    """
    from benchmarks.routing.caption_splits import read_captions
    from benchmarks.routing.routing_comparison import TextEncoder, compare_routing, routing_table
    from models.backbones.backbone_loading import load_backbone

    with _report_benchmark_errors():
        captions = {split.stem: read_captions(split) for split in splits}
        encoder = TextEncoder(load_backbone(backbone))
        results = [compare_routing(name, fold, encoder) for name, fold in captions.items()]
    table = routing_table(results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(f"    {_command_line()}\n\n{table}", encoding="utf-8")
    console.print(table, soft_wrap=True)
    console.print(f"Written to {out}.", soft_wrap=True)


class _Display(NamedTuple):
    """Callbacks that show the number of prepared clips and a line above it."""

    progress: Callable[[int, int], None]
    report: Callable[[str], None]


@contextmanager
def _frames_display(unit: str) -> Iterator[_Display]:
    """Show a progress bar while the block prepares frames."""
    with progress_bar(unit) as bar:
        frames = bar.add_task("Frames", total=None)
        yield _Display(
            lambda done, total: bar.update(frames, completed=done, total=total),
            lambda line: bar.console.print(line),
        )


@app.command()
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
    counts: Annotated[
        str | None,
        typer.Option(
            "--counts",
            metavar="N,M",
            help="Measure one method with at most N, M and all captioned training clips per domain, "
            "without rivals. Each seed selects different clips.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = DEFAULT_FOLDER / "clips",
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Compare methods on your own clips with ridge regression on frozen image features.

    Each subfolder with a manifest is a domain. Clips with the split "test" are held out; without any split, a fifth of
    the clips is held out, at least 2. The rivals (a ridge per domain, and one over all domains) see the same frames,
    and are routed both by words and by the first method's routing evidence. Tables are written after each run.
    """
    from benchmarks.clips.clip_comparison import compare_on_clips, measure_caption_curve
    from benchmarks.learning.protocol import select_variants
    from benchmarks.reporting.clip_report import write_caption_report, write_clip_report

    limits = [int(part) if part.strip().isdecimal() else 0 for part in counts.split(",")] if counts else []
    if not all(limits):
        refuse_call(f"--counts: {counts!r} is not a list of positive numbers.", "Example: --counts 5,10,20")
    with _report_benchmark_errors():
        variants = select_variants((), methods.split(","))
        if limits and len(variants) > 1:
            refuse_call("--counts measures one method.", "Name it: --methods analytic")
        with _frames_display("clips") as display:
            options: dict[str, Any] = {
                "backbone": backbone,
                "seeds": seeds,
                "cache": cache,
                "device": _device_type(device),
                "workers": min(os.cpu_count() or 1, 8),
                "progress": display.progress,
                "report": display.report,
            }
            if limits:
                points = measure_caption_curve(folder, variants[0], limits, **options)
                table = write_caption_report(out, points, _command_line(), variants[0].label, backbone)
            else:
                for runs, rivals in compare_on_clips(folder, variants, **options):
                    table = write_clip_report(out, runs, rivals, _command_line(), backbone)
    console.print(table, soft_wrap=True)
    console.print(f"Written to {out}.", soft_wrap=True)


@app.command()
@report_errors
def queries(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders with one subfolder per domain, each with clips and a manifest; together they "
            "form one library.",
            file_okay=False,
        ),
    ],
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", min=1, help="Number of seeds, which select the order of domains and the queries."
        ),
    ] = 1,
    count: Annotated[
        int, typer.Option("--queries", min=1, help="Maximum number of queries per kind and seed.")
    ] = 150,
    domains: Annotated[
        str | None, typer.Option("--domains", metavar="A,B", help="Domains to use (default: all).")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option("--exclude", metavar="A,B", help="Domains to leave out.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help="Search this running service, which has the folders' clips, beside BM25 alone."
        ),
    ] = None,
    names: Annotated[
        bool,
        typer.Option(
            "--names/--no-names",
            help="Also store file names and metadata. Without them, hidden clips have no text at all.",
        ),
    ] = False,
    uncaptioned: Annotated[
        str,
        typer.Option("--uncaptioned", metavar="A,B", help="Shares of the clips whose captions are hidden."),
    ] = "0.2",
    backbone: Annotated[str, typer.Option("--backbone", help="Backbone of the library.")] = "small",
    method: Annotated[
        str | None, typer.Option("--method", help="Learning method (default: the backbone's).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = DEFAULT_FOLDER / "queries",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Search a library of your own clips as people do, and compare with full-text search and other rivals.

    Ingests all domains as the service does; a share of the clips is stored without captions. The queries are words,
    word pairs, captions, also as people retype them, and unknown texts. Rivals are BM25, two fusions with the vectors,
    the vectors alone, the backbone without learning, a ridge regression, the same with the product's words, and chance.
    """
    from benchmarks.queries.query_comparison import compare_on_queries
    from benchmarks.queries.running_service import compare_service
    from benchmarks.reporting.query_report import write_query_report

    options: dict[str, Any] = {
        "seeds": seeds,
        "queries": count,
        "names": names,
        "only": domains.split(",") if domains else (),
        "excluded": exclude.split(",") if exclude else (),
    }
    shares = [0.0] if url else _parse_shares(uncaptioned)
    for share in shares:
        with _report_benchmark_errors(), _frames_display("clips") as display:
            if url:
                results = compare_service(url, folders, report=display.report, **options)
            else:
                results = compare_on_queries(
                    folders,
                    backbone=backbone,
                    cache=cache,
                    method=method,
                    uncaptioned=share,
                    workers=min(os.cpu_count() or 1, 8),
                    progress=display.progress,
                    report=display.report,
                    **options,
                )
        folder = out if len(shares) == 1 else out / f"uncaptioned-{share:g}"
        table = write_query_report(folder, results, _command_line(), url or backbone)
        console.print(table, soft_wrap=True)
        console.print(f"Written to {folder}.", soft_wrap=True)


def _parse_shares(text: str) -> list[float]:
    """Parse shares, 0 or more and less than 1, separated by commas."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 <= share < 1 for share in shares):
        fail("--uncaptioned has shares of clips", "Write numbers from 0 to below 1, for example 0.05,0.2.")
    return shares


def _prepare_campaign(
    plan: Protocol,
    backbone: str,
    out: Path,
    cache: Path,
    videos: Path | None,
    tasks: int | None,
    device: str,
) -> Campaign:
    """Prepare a protocol's runs, with the frames of its videos in the cache."""
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
        device=_device_type(device),
        out=out,
        command=_command_line(),
    )


def _execute_runs(
    campaign: Campaign, runs: Sequence[Run], *, jobs: int, again: bool = False
) -> list[tuple[Run, str]]:
    """Execute the runs without a result, print their progress, and return failed runs with their errors."""
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


def _command_line() -> str:
    """Return the command line of this process, for reports."""
    return shlex.join(["cinestrata", *sys.argv[1:]])


@contextmanager
def _report_benchmark_errors() -> Iterator[None]:
    """Report errors in protocols, methods and backbones as sentences instead of tracebacks."""
    from benchmarks.errors import ProtocolError
    from models.errors import ModelError
    from trainer.errors import TrainingError
    from trainer.methods import MethodError

    try:
        yield
    except (ProtocolError, MethodError, ModelError, TrainingError) as error:
        fail(str(error))


def _device_type(name: str) -> str:
    """Resolve a device name to its type; ``auto`` selects a GPU if there is one."""
    from models.backbones.tower_computation import compute_device

    with _report_benchmark_errors():
        return compute_device(name).type
