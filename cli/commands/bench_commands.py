"""``cinestrata bench``: compare learning methods on published data sets and on your own clips."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console import CommandGroup, console, fail, progress_bar, refuse_call

if TYPE_CHECKING:
    from benchmarks.data.source_tasks import SourceTask
    from benchmarks.learning.protocol import MethodVariant

app = CommandGroup(
    help="Compare learning methods on published data sets, or on your own clips.", no_args_is_help=True
)

DEFAULT_FOLDER = Path("cinestrata-data/bench")
Cache = Annotated[Path, typer.Option("--cache", help="Folder for decoded frames.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, or auto (a GPU if available).")]
DomainFolder = Annotated[
    Path, typer.Argument(help="Folder with a subfolder of clips and a manifest per domain.", file_okay=False)
]


@app.command()
def run(
    protocol: Annotated[
        str | None,
        typer.Argument(
            help="Name of a protocol, or the path of a .yaml file (default: list the protocols).",
            show_default=False,
        ),
    ] = None,
    videos: Annotated[Path | None, typer.Option(help="Videos and captions of the data set.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Methods or variants, for example finetune@learning_rate=1e-4@epochs=4 (default: all methods).",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of runs per method (default: the protocol's).")
    ] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Number of tasks to learn (default: all).")] = None,
    out: Annotated[
        Path | None, typer.Option(help=f"Folder for the results (default: {DEFAULT_FOLDER}/<protocol>).")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Default: the protocol's.")] = None,
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Learn the tasks of a published data set with each method, and compare recall and forgetting.

    Tables are written after each run. All runs have the published order of tasks.
    """
    from benchmarks.learning.protocol import load_protocol, protocol_names, select_variants
    from benchmarks.rivals import METHODS

    if protocol is None:
        for name in protocol_names():
            listed = load_protocol(name)
            console.print(f"{name:20}  {listed.title}, {listed.backbone}")
        return
    with _report_benchmark_errors():
        plan = load_protocol(protocol)
        variants = [
            plan.complete(each) for each in select_variants(methods.split(",") if methods else list(METHODS))
        ]
        _compare(
            list(plan.source.tasks(videos, tasks)),
            variants,
            out or DEFAULT_FOLDER / plan.name,
            backbone=backbone or plan.backbone,
            seeds=seeds or plan.seeds,
            cache=cache,
            device=device,
            frames=plan.frames,
            ridges=False,
            shuffled=False,
        )


@app.command()
def routing(
    splits: Annotated[list[Path], typer.Argument(help="Published splits as JSON, such as actnet-10.json.")],
    backbone: Annotated[str, typer.Option(help="Backbone that supplies tokens and text vectors.")] = "small",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = DEFAULT_FOLDER / "routing",
) -> None:
    """Measure how often captions from published splits are routed to their own task.

    Training captions define the tasks, and test captions are routed. Without training captions, the test captions of a
    split are divided into two folds.
    """
    from benchmarks.routing.routing_comparison import (
        TextEncoder,
        compare_routing,
        read_captions,
        routing_table,
    )
    from models.backbones.backbone_loading import load_backbone

    with _report_benchmark_errors():
        captions = {split.stem: read_captions(split) for split in splits}
        encoder = TextEncoder(load_backbone(backbone))
        results = [compare_routing(name, fold, encoder) for name, fold in captions.items()]
    table = routing_table(results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(f"    {_command_line()}\n\n{table}", encoding="utf-8")
    _print_table(table, out)


@app.command()
def clips(
    folder: DomainFolder,
    methods: Annotated[
        str, typer.Option(metavar="A,B", help="Methods or variants, as for `cinestrata bench run`.")
    ] = "analytic",
    backbone: Annotated[str, typer.Option(help="Backbone of the methods.")] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method; later ones shuffle the domains.")] = 1,
    counts: Annotated[
        str | None,
        typer.Option(
            metavar="N,M",
            help="Measure one method with at most N, M and all captioned training clips per domain, "
            "without rivals. Each seed selects different clips.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = DEFAULT_FOLDER / "clips",
    device: Device = "auto",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Compare methods on your own clips with ridge regression on frozen image features.

    Each subfolder with a manifest is a domain. Clips with the split "test" are held out; without any split, a fifth of
    the clips is held out, at least 2. The rivals (a ridge per domain, and one over all domains) see the same frames,
    and are routed both by words and by the first method's routing evidence. Tables are written after each run.
    """
    from benchmarks.clips.clip_comparison import measure_caption_curve, write_caption_report
    from benchmarks.data.clip_folders import read_clip_domains
    from benchmarks.learning.protocol import select_variants
    from models.backbones.tower_computation import compute_device

    limits = [int(part) if part.strip().isdecimal() else 0 for part in counts.split(",")] if counts else []
    if not all(limits):
        refuse_call(f"--counts: {counts!r} is not a list of positive numbers.", "Example: --counts 5,10,20")
    with _report_benchmark_errors():
        variants = select_variants(methods.split(","))
        if limits and len(variants) > 1:
            refuse_call("--counts measures one method.", "Name it: --methods analytic")
        options: dict[str, Any] = {"backbone": backbone, "seeds": seeds, "cache": cache}
        domains = read_clip_domains(folder)
        if not limits:
            _compare(domains, variants, out, device=device, **options)
            return
        with _frames_display() as display:
            options["device"] = compute_device(device).type
            points = measure_caption_curve(domains, variants[0], limits, **options, **display)
    _print_table(write_caption_report(out, points, _command_line(), variants[0].label, backbone), out)


@app.command()
def queries(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders with one subfolder per domain, each with clips and a manifest; together they "
            "form one library.",
            file_okay=False,
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the order of domains and the queries.")] = 1,
    count: Annotated[int, typer.Option("--queries", min=1, help="Maximum per kind and seed.")] = 150,
    domains: Annotated[str | None, typer.Option(metavar="A,B", help="Domains to use (default: all).")] = None,
    exclude: Annotated[str | None, typer.Option(metavar="A,B", help="Left-out domains.")] = None,
    url: Annotated[
        str | None, typer.Option(help="Search this running service with the folders' clips, beside BM25.")
    ] = None,
    names: Annotated[
        bool,
        typer.Option(
            "--names/--no-names",
            help="Also store file names and metadata. Without them, hidden clips have no text at all.",
        ),
    ] = False,
    uncaptioned: Annotated[
        str, typer.Option(metavar="A,B", help="Shares of the clips whose captions are hidden.")
    ] = "0.2",
    backbone: Annotated[str, typer.Option(help="Backbone of the library.")] = "small",
    method: Annotated[str | None, typer.Option(help="Default: the backbone's.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = DEFAULT_FOLDER / "queries",
    cache: Cache = DEFAULT_FOLDER / "frames",
) -> None:
    """Search a library of your own clips as people do, and compare with full-text search and other rivals.

    Ingests all domains as the service does; a share of the clips is stored without captions. The queries are words,
    word pairs, captions, also as people retype them, and unknown texts. Rivals are BM25, two fusions with the vectors,
    the vectors alone, the backbone without learning, a ridge regression, the same with the product's words, and chance.
    """
    from benchmarks.queries.query_comparison import compare_on_queries, compare_service
    from benchmarks.queries.query_report import write_query_report

    options: dict[str, Any] = {
        "seeds": seeds,
        "queries": count,
        "names": names,
        "only": domains.split(",") if domains else (),
        "excluded": exclude.split(",") if exclude else (),
    }
    shares = [0.0] if url else _parse_shares(uncaptioned)
    for share in shares:
        with _report_benchmark_errors(), _frames_display() as display:
            if url:
                results = compare_service(url, folders, report=display["report"], **options)
            else:
                options |= {"backbone": backbone, "cache": cache, "method": method, "uncaptioned": share}
                results = compare_on_queries(folders, **display, **options)
        folder = out if len(shares) == 1 else out / f"uncaptioned-{share:g}"
        _print_table(write_query_report(folder, results, _command_line(), url or backbone), folder)


def _parse_shares(text: str) -> list[float]:
    """Parse shares, 0 or more and less than 1, separated by commas."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 <= share < 1 for share in shares):
        fail(f"--uncaptioned: {text!r} is not valid.", "Write numbers from 0 to below 1, such as 0.05,0.2.")
    return shares


def _compare(
    domains: Sequence[SourceTask], variants: Sequence[MethodVariant], out: Path, **options: Any
) -> None:
    """Compare methods, and write the tables after each run."""
    from benchmarks.clips.clip_comparison import compare_on_clips, write_clip_report
    from models.backbones.tower_computation import compute_device

    with _frames_display() as display:
        options["device"] = compute_device(options["device"]).type
        for methods, rivals in compare_on_clips(domains, variants, **options, **display):
            table = write_clip_report(out, methods, rivals, _command_line(), options["backbone"])
    _print_table(table, out)


@contextmanager
def _frames_display() -> Iterator[dict[str, Any]]:
    """Show a progress bar while the block prepares frames, and yield the options that update it."""
    with progress_bar("clips") as bar:
        frames = bar.add_task("Frames", total=None)
        yield {
            "workers": min(os.cpu_count() or 1, 8),
            "progress": lambda done, total: bar.update(frames, completed=done, total=total),
            "report": bar.console.print,
        }


def _print_table(table: str, folder: Path) -> None:
    console.say(table)
    console.say(f"Written to {folder}.")


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
