"""Report benchmark results: the papers' tables, with mean ± standard deviation over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.learning.run_results import RunResult
from benchmarks.reporting.markdown_tables import format_mean, markdown_table
from models.forgetting_measures import forward_transfer, learning_gain

_RECALLS = {"R@1 ↑": "r1", "R@5 ↑": "r5", "R@10 ↑": "r10", "MedR ↓": "medr", "MeanR ↓": "meanr"}
_DIRECTIONS = {f"{side}R@{k} ↑": f"{side.lower()}r{k}" for side in "TI" for k in (1, 5, 10)} | {"Rm ↑": "rm"}
_PAIR_DEPTHS = (1, 5, 10)
_PRECISION_AT = 10
_PHASES = ("training", "indexing", "evaluation")
_GLOBAL_GALLERY = "unknown task: every query searches the held-out videos of all tasks"
_LOCAL_GALLERY = "known task: every query searches the held-out videos of its own task"
# Columns in the table of galleries: held-out videos, then all videos, which include those for training.
_GALLERIES = {
    "own shard": "local",
    "all shards": "global",
    "all shards, raw": "global_raw",
    "own shard, all videos": "local_all",
    "all shards, all videos": "global_all",
}
_GALLERY_LEGEND = (
    "R@1 / R@10. Own shard: the task is known (oracle task), means over the tasks. All shards: merged with routing "
    "evidence, or by raw cosines; over all queries together. Galleries hold the held-out videos or, with *all videos*, "
    "those of training and validation too. Trained: parameters with a gradient in the last task, of a "
    "table of token embeddings the rows of the captions' tokens; 0 for closed forms. Release: numbers in the files of "
    "the newest release (weights, statistics or memory for the next task, routing profile of its own task). Search: "
    "numbers of the query encoders and routing profiles that searches over all tasks need. All without the frozen "
    "backbone."
)


def recall_tables(results: Sequence[RunResult]) -> str:
    """Format the tables printed after every run: the global and the local gallery, and all galleries with sizes."""
    return (
        f"**Global gallery** ({_GLOBAL_GALLERY}; over all queries together)\n\n"
        + markdown_table(
            ["method", "queries", *_RECALLS, "BWF ↓", "routing@1 ↑", "seeds"],
            [
                [
                    *_name_cells(runs, mode),
                    *_measure_cells(runs, mode, "global", [*_RECALLS.values(), "bwf"]),
                    format_mean([run.routing(1) for run in runs]),
                    str(len(runs)),
                ]
                for runs, mode in _rows(results)
            ],
        )
        + f"\n**Local gallery** ({_LOCAL_GALLERY}; means over the tasks)\n\n"
        + markdown_table(
            ["method", "queries", *_RECALLS, "BWF ↓", "FR ↓", "HM ↑", "seeds"],
            [
                [
                    *_name_cells(runs, mode),
                    *_measure_cells(runs, mode, "local", [*_RECALLS.values(), "bwf", "fr", "hm"]),
                    str(len(runs)),
                ]
                for runs, mode in _rows(results)
            ],
        )
        + f"\n**Galleries and sizes** ({_GALLERY_LEGEND})\n\n"
        + markdown_table(
            ["method", "queries", *_GALLERIES, "trained", "release", "search"],
            [
                [
                    *_name_cells(runs, mode),
                    *(_recall_pair(runs, mode, gallery) for gallery in _GALLERIES.values()),
                    *_size_cells(runs[0], mode),
                ]
                for runs, mode in _rows(results)
            ],
        )
    )


def write_report(folder: Path, results: Sequence[RunResult]) -> Path:
    """Write ``report.md``.

    Args:
        folder: Output folder of ``bench run``.
        results: Results on the same data.

    Returns:
        The path of ``report.md``.
    """
    first = results[0]
    lines = [
        f"# {first.facts['protocol']['title']} (`{first.protocol}`)",
        "",
        *_circumstances(results),
        "",
        "## Search",
        "",
        recall_tables(results),
        "## Both directions",
        "",
        "After the last task. TR: a held-out video searches the captions; IR: a caption searches the held-out videos; "
        "Rm: mean of the six recalls (CTP, table 1). Unknown task: the union of all tasks, over all queries together; "
        "known task: the own task, means over the tasks. mAP@N: pairs of a video and a caption search pairs of the "
        "same label by their fused vectors (CTP, equation 11); where the data has labeled pairs and the method has a "
        "multi-modal encoder.",
        "",
        _both_directions(results),
        "## Every task",
        "",
        "R@1 of the last release in the local gallery; in parentheses FR, the loss since the task was learned.",
        "",
        _by_task(results),
        "## Other measures",
        "",
        "V→T: R@1 of captions, with held-out videos as queries. mAP: text to video, every video of the category of the "
        "query's video is relevant; where the data has categories. FWT: R@1 of a task directly before it is learned, "
        "minus zero-shot (local gallery); gain: R@1 of a task directly after it is learned, minus zero-shot; both "
        "require a zero-shot result. Drift: mean angle between current and original queries of earlier tasks. "
        "Routing@m: the query's task is among the first m. Hubness: skewness of N_10 over the held-out videos.",
        "",
        _further_measures(results),
        "## Matrices",
        "",
        "A[i, t]: R@1 of release i (rows) on the queries of task t (columns), mean over the seeds.",
        "",
        *_matrices(results),
        "## Costs",
        "",
        "Wall time of all tasks together, and the ratio of the last task to the second; peak memory of all phases "
        f"({first.memory}), and the ratio of the last task to the second. Evaluation is that of the learning job: the "
        "default query mode only. The time of all other measures is not included.",
        "",
        _costs(results),
    ]
    path = folder / "report.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _circumstances(results: Sequence[RunResult]) -> list[str]:
    facts = results[0].facts
    videos = facts["videos"].values()
    counts = ", ".join(f"{sum(v[split] for v in videos)} {split}" for split in ("train", "val", "test"))
    commands = dict.fromkeys(r.facts["command"] for r in results)
    versions = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in r.facts["versions"].items()) for r in results
    )
    commits = dict.fromkeys(r.facts["commit"] or "unknown" for r in results)
    machines = dict.fromkeys(
        f"{m['cpus']} CPUs, {m['threads']} threads of torch, {m['device']}"
        for m in (r.facts["machine"] for r in results)
    )
    engines = dict.fromkeys(r.facts["backbone"]["engine"] for r in results)
    return [
        *(f"    {command}" for command in commands),
        "",
        f"{len(results[0].tasks)} tasks; {counts} videos; backbone {facts['backbone']['name']} with "
        f"{facts['backbone']['frames']} frames per video, in {' and '.join(engines)}. Data {results[0].data}; "
        f"commit {', '.join(commits)}; {'; '.join(versions)}; {'; '.join(machines)}.",
    ]


def _rows(results: Sequence[RunResult]) -> Iterator[tuple[list[RunResult], str]]:
    """Group the seeds of each method variant, once per query mode."""
    for label in dict.fromkeys(result.label for result in results):
        runs = [result for result in results if result.label == label]
        for mode in runs[0].modes:
            yield runs, mode


def _name_cells(runs: Sequence[RunResult], mode: str) -> list[str]:
    return [runs[0].label, mode]


def _measure_cells(runs: Sequence[RunResult], mode: str, gallery: str, measures: Sequence[str]) -> list[str]:
    figures = [run.measures(mode, gallery) for run in runs]
    return [format_mean([figure[measure] for figure in figures]) for measure in measures]


def _both_directions(results: Sequence[RunResult]) -> str:
    measured = any(result.pair_mean_ap(1) is not None for result in results)
    depths = _PAIR_DEPTHS if measured else ()
    rows = []
    for runs, mode in _rows(results):
        for task, gallery in (("unknown", "global"), ("known", "local")):
            figures = [run.both_directions(mode, gallery) for run in runs]
            cells = [format_mean([figure[name] for figure in figures]) for name in _DIRECTIONS.values()]
            # Pairs from all tasks are searched together.
            precisions = [
                format_mean([run.pair_mean_ap(depth) if gallery == "global" else None for run in runs])
                for depth in depths
            ]
            rows.append([*_name_cells(runs, mode), task, *cells, *precisions])
    header = ["method", "queries", "task", *_DIRECTIONS, *(f"mAP@{depth} ↑" for depth in depths)]
    return markdown_table(header, rows)


def _recall_pair(runs: Sequence[RunResult], mode: str, gallery: str) -> str:
    """Average R@1 and R@10 over the seeds; a dash if the gallery was not measured."""
    figures = [run.measures(mode, gallery) for run in runs if gallery in run.galleries(mode)]
    return " / ".join(
        _format_number(_average([figure[name] for figure in figures])) for name in ("r1", "r10")
    )


def _size_cells(run: RunResult, mode: str) -> list[str]:
    sizes = run.parameters
    counts = [sizes.get("trained"), sizes.get("release"), sizes.get("search", {}).get(mode)]
    return ["–" if count is None else f"{count:,}" for count in counts]


def _by_task(results: Sequence[RunResult]) -> str:
    rows = []
    for runs, mode in _rows(results):
        matrices = [run.matrix(mode, "local") for run in runs]
        cells = []
        for task in range(len(runs[0].tasks)):
            final = _average([matrix[-1][task] for matrix in matrices])
            lost = (
                _average([_lost_recall(matrix, task) for matrix in matrices]) if runs[0].sequential else None
            )
            cells.append(_format_number(final) + (f" ({_format_number(lost)})" if lost is not None else ""))
        rows.append([*_name_cells(runs, mode), *cells])
    return markdown_table(["method", "queries", *results[0].tasks], rows)


def _further_measures(results: Sequence[RunResult]) -> str:
    untrained = next((result for result in results if result.method == "zero_shot"), None)
    floor = [row[task] for task, row in enumerate(untrained.matrix("latest", "local"))] if untrained else None
    rows = [
        [
            *_name_cells(runs, mode),
            format_mean([run.to_text(mode, "local") for run in runs]),
            format_mean([run.to_text(mode, "global") for run in runs]),
            format_mean([run.mean_ap(mode, "global", _PRECISION_AT) for run in runs]),
            format_mean([_forward_transfer(run, floor) if mode == "latest" else None for run in runs]),
            format_mean([_learning_gain(run, mode, floor) for run in runs]),
            format_mean([run.drift(mode) for run in runs]),
            *(format_mean([run.routing(m) for run in runs]) for m in (1, 2, 4)),
            format_mean([run.hubness(mode) for run in runs]),
        ]
        for runs, mode in _rows(results)
    ]
    precise = f"mAP@{_PRECISION_AT} global ↑"
    named = ["V→T local ↑", "V→T global ↑", precise, "FWT ↑", "gain ↑", "drift ° ↓"]
    return markdown_table(
        ["method", "queries", *named, *(f"routing@{m} ↑" for m in (1, 2, 4)), "hubness ↓"], rows
    )


def _forward_transfer(run: RunResult, floor: Sequence[float | None] | None) -> float | None:
    if floor is None or not run.sequential:
        return None
    return forward_transfer([100 * recall["r1"] if recall else None for recall in run.before], floor)


def _learning_gain(run: RunResult, mode: str, floor: Sequence[float | None] | None) -> float | None:
    return learning_gain(run.matrix(mode, "local"), floor) if floor is not None and run.sequential else None


def _matrices(results: Sequence[RunResult]) -> Iterator[str]:
    for runs, mode in _rows(results):
        for gallery in ("local", "global"):
            matrix = _mean_matrix([run.matrix(mode, gallery) for run in runs])
            named = zip(runs[0].tasks, matrix, strict=True)
            rows = [
                [f"after {task}", *map(_format_number, row)]
                for task, row in named
                if any(cell is not None for cell in row)
            ]
            yield f"{runs[0].label}, {mode}, {gallery} gallery\n"
            yield markdown_table(["", *runs[0].tasks], rows)


def _costs(results: Sequence[RunResult]) -> str:
    rows = []
    for label in dict.fromkeys(result.label for result in results):
        runs = [result for result in results if result.label == label]
        totals = [format_mean([sum(run.seconds[phase]) for run in runs], "{:.1f}") for phase in _PHASES]
        rows.append(
            [
                label,
                str(sum(runs[0].steps)),
                *totals,
                format_mean([_growth(run, run.seconds, sum) for run in runs]),
                format_mean([max(map(max, run.peak_mib.values())) for run in runs], "{:.0f}"),
                format_mean([_growth(run, run.peak_mib, max) for run in runs]),
                format_mean([_device_peak(run) for run in runs], "{:.0f}"),
            ]
        )
    header = ["method", "steps", "training s", "indexing s", "evaluation s", "last / 2nd task"]
    return markdown_table([*header, "peak MiB", "last / 2nd task", "GPU MiB"], rows)


def _growth(
    run: RunResult, phases: dict[str, list[float]], combine: Callable[[list[float]], float]
) -> float | None:
    """Divide the last task's cost by the second one's; None for joint training or fewer than three tasks."""
    if len(run.tasks) < 3 or not run.sequential:
        return None
    costs = [phases[phase] for phase in _PHASES]
    return combine([phase[-1] for phase in costs]) / combine([phase[1] for phase in costs])


def _device_peak(run: RunResult) -> float | None:
    return max(map(max, run.peak_device_mib.values())) if run.peak_device_mib else None


def _mean_matrix(matrices: Sequence[list[list[float | None]]]) -> list[list[float | None]]:
    return [[_average(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def _lost_recall(matrix: list[list[float | None]], task: int) -> float | None:
    learned, final = matrix[task][task], matrix[-1][task]
    return None if learned is None or final is None else learned - final


def _average(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present else None


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
