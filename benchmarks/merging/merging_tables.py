"""Markdown tables of a merging comparison."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.merging.comparison import MergingComparison, VariantResult, served_variant
from benchmarks.merging.merging_rules import COSINE, SERVED
from benchmarks.reporting.markdown_tables import format_mean, markdown_table

__all__ = ["comparison_tables"]


def comparison_tables(runs: Sequence[MergingComparison]) -> str:
    """Tables of merging rules, routers and poolings: mean ± standard deviation over the seeds."""
    first = runs[0]
    measured = [{result.variant: result for result in run.measures} for run in runs]
    variants = [variant for variant in measured[0] if all(variant in run for run in measured)]
    results = {variant: [run[variant] for run in measured] for variant in variants}
    merged = [v for v in variants if v.frames == "mean" and not v.router]
    routed = [v for v in variants if v.router]
    pooled = [v for v in variants if not v.router and v.rule in (COSINE, SERVED)]
    reference = served_variant({variant.queries for variant in variants})
    header = ["R@1 ↑", "R@5 ↑", "R@10 ↑", "MedR ↓", "gain ± s.e."]
    size = {pooling: f"{n} ({n * first.dim * 4 / 1024:g} KiB)" for pooling, n in first.vectors.items()}
    poolings = {"mean-pooled": ["mean"], "any pooling": list(first.vectors)}
    queries = first.measures[0].recall.queries
    return (
        f"Global gallery (unknown task): {queries} queries over {len(first.tasks)} tasks, {len(runs)} "
        f"{'seed' if len(runs) == 1 else 'seeds'} of {first.label}. Gain: mean of R@1, R@5 and R@10 minus that of "
        f"{reference.rule} with {reference.queries} queries and mean-pooled frames, with its standard error over "
        "the videos.\n\n"
        "**Merging**\n\n"
        + markdown_table(
            ["queries", "rule", *header, "chosen"],
            [
                [v.queries, v.rule, *_cells(results[v]), _join_distinct(r.chosen for r in results[v])]
                for v in merged
            ],
        )
        + "\n**Routing** (the videos of the r likeliest tasks rank before all others; without a router: see above)\n\n"
        + markdown_table(
            ["queries", "rule", "router", "r", "routing@r ↑", *header],
            [
                [
                    *(v.queries, v.rule, v.router, str(v.candidates)),
                    format_mean([100 * r.accuracy for r in results[v] if r.accuracy is not None]),
                    *_cells(results[v]),
                ]
                for v in routed
            ],
        )
        + "\n**Frames**\n\n"
        + markdown_table(
            ["queries", "rule", "frames", "vectors per video", *header],
            [[v.queries, v.rule, v.frames, size[v.frames], *_cells(results[v])] for v in pooled],
        )
        + "\n**Selected with validation captions**\n\n"
        + markdown_table(
            ["among", *header, "chosen"],
            [
                [name, *_cells(best), _join_distinct(map(_describe, best))]
                for name, among in poolings.items()
                for best in [[run.best(among) for run in runs]]
            ],
        )
    )


def _cells(results: Sequence[VariantResult]) -> list[str]:
    """Recalls with their deviation over the seeds; gain and error as means, since all seeds share the videos."""
    recalls = [result.recall for result in results]
    shares = [[100 * value for value in (r.r1, r.r5, r.r10)] for r in recalls]
    gain, error = (
        statistics.fmean(values) for values in zip(*((r.gain, r.error) for r in results), strict=True)
    )
    return [
        *(format_mean(values) for values in zip(*shares, strict=True)),
        format_mean([r.medr for r in recalls]),
        f"{gain:+.2f} ± {error:.2f}",
    ]


def _describe(result: VariantResult) -> str:
    variant = result.variant
    return f"{variant.queries}, {variant.frames}, {variant.rule}" + (
        f" ({result.chosen})" if result.chosen else ""
    )


def _join_distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))
