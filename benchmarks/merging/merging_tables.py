"""What was found about merging and routing, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.merging.comparison import COSINE, SERVED, Comparison, Measure, reference_of
from benchmarks.reporting.markdown_tables import format_mean, markdown_table

__all__ = ["comparison_tables"]


def comparison_tables(runs: Sequence[Comparison]) -> str:
    """Mean ± standard deviation over the seeds, as Markdown."""
    first = runs[0]
    measured = [{one.way: one for one in run.measures} for run in runs]
    ways = [way for way in measured[0] if all(way in run for run in measured)]
    found = {way: [run[way] for run in measured] for way in ways}
    merged = [way for way in ways if way.frames == "mean" and not way.router]
    routed = [way for way in ways if way.router]
    pooled = [way for way in ways if not way.router and way.rule in (COSINE, SERVED)]
    reference = reference_of({way.queries for way in ways})
    header = ["R@1 ↑", "R@5 ↑", "R@10 ↑", "MedR ↓", "gain ± s.e."]
    size = {pooling: f"{n} ({n * first.dim * 4 / 1024:g} KiB)" for pooling, n in first.vectors.items()}
    poolings = {"mean-pooled": ["mean"], "any pooling": list(first.vectors)}
    queries = first.measures[0].recall.queries
    return (
        f"Union gallery (unknown task): {queries} queries over {len(first.tasks)} tasks, {len(runs)} "
        f"{'seed' if len(runs) == 1 else 'seeds'} of {first.label}. Gain: of the mean of R@1, R@5 and R@10 over "
        f"{reference.rule} with {reference.queries} queries and mean-pooled frames, with its standard error over "
        "the videos.\n\n"
        "**Merging**\n\n"
        + markdown_table(
            ["queries", "rule", *header, "chosen"],
            [[w.queries, w.rule, *_cells(found[w]), _distinct(m.chosen for m in found[w])] for w in merged],
        )
        + "\n**Routing** (the r likeliest tasks are searched before the others; all alike: see above)\n\n"
        + markdown_table(
            ["queries", "rule", "router", "r", "routing@r ↑", *header],
            [
                [
                    *(w.queries, w.rule, w.router, str(w.candidates)),
                    format_mean([100 * m.accuracy for m in found[w] if m.accuracy is not None]),
                    *_cells(found[w]),
                ]
                for w in routed
            ],
        )
        + "\n**Frames**\n\n"
        + markdown_table(
            ["queries", "rule", "frames", "vectors of a video", *header],
            [[w.queries, w.rule, w.frames, size[w.frames], *_cells(found[w])] for w in pooled],
        )
        + "\n**Chosen by validation captions**\n\n"
        + markdown_table(
            ["of", *header, "chosen"],
            [
                [name, *_cells(best), _distinct(map(_named, best))]
                for name, among in poolings.items()
                for best in [[run.best(among) for run in runs]]
            ],
        )
    )


def _cells(found: Sequence[Measure]) -> list[str]:
    """Recalls with their deviation over the seeds; gain and error as means over them, since the videos are the same."""
    recalls = [one.recall for one in found]
    shares = [[100 * value for value in (r.r1, r.r5, r.r10)] for r in recalls]
    gain, error = (
        statistics.fmean(values) for values in zip(*((m.gain, m.error) for m in found), strict=True)
    )
    return [
        *(format_mean(values) for values in zip(*shares, strict=True)),
        format_mean([r.medr for r in recalls]),
        f"{gain:+.2f} ± {error:.2f}",
    ]


def _named(one: Measure) -> str:
    way = one.way
    return f"{way.queries}, {way.frames}, {way.rule}" + (f" ({one.chosen})" if one.chosen else "")


def _distinct(told: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, told)))
