"""Compare a library of one encoder with libraries in which half of the domains have another one.

    python -m benchmarks.queries.mixed_encoders photos videos --other lite2

Every second domain, in order of name, has the other encoder, then the remaining ones have it. Each caption of a hidden
video is searched in all domains of each library. In fold f, the videos whose file name has a SHA-256 that modulo 5 is f
are hidden; with five folds, every video is.

``--answers N`` captions of the first half are also searched before and after the second half is learned with the other
encoder, without its captions and with them, which change how rare a word is. Counted are those whose first ten stay, in
the caption's domain and, apart from added clips, among all domains.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.clips.clip_runs import Interval, difference_interval, query_mean
from benchmarks.queries.library_videos import Library, hide_videos, read_domains
from benchmarks.queries.query_kinds import caption_queries
from benchmarks.queries.served_library import Question, serve
from benchmarks.reporting.markdown_tables import format_interval, markdown_table, write_report

_DEPTHS = (1, 10)
_ALL = 10**6  # captions per kind: no sample

Hits = dict[tuple[str, str], dict[int, list[float]]]  # of each query at each depth, by library and domain


def measure(folders: Sequence[Path], *, backbone: str, other: str, folds: int, work: Path) -> Hits:
    """Search the captions of hidden videos in the three libraries: 100 if the video is found, otherwise 0."""
    domains = read_domains(folders, work / "media")
    names = sorted(domains)
    libraries = {
        "one encoder": {},
        "first half": dict.fromkeys(names[::2], other),
        "second half": dict.fromkeys(names[1::2], other),
    }
    hits: Hits = {(name, domain): {depth: [] for depth in _DEPTHS} for name in libraries for domain in names}
    for fold in range(folds):
        library = hide_videos(domains, 0, fold=fold)
        queries = caption_queries(library, ["hidden"], _ALL, 0)
        for name, backbones in libraries.items():
            questions = [Question(query.text) for query in queries]
            answers = _search(library, questions, work, backbone, backbones)
            for query, top in zip(queries, answers, strict=True):
                for depth, scores in hits[name, query.domain or ""].items():
                    scores.append(100.0 * bool(query.right & {*top[:depth]}))
            sys.stderr.write(f"fold {fold + 1} of {folds}, {name}: {len(queries)} searches\n")
    return hits


def compare_answers(
    folders: Sequence[Path], *, backbone: str, other: str, count: int, work: Path
) -> dict[str, int]:
    """Count the captions whose answers stay the same when the second half is learned."""
    library = hide_videos(read_domains(folders, work / "media"), 0)
    old = {name: library[name] for name in sorted(library)[::2]}
    added = {name: videos for name, videos in library.items() if name not in old}
    silent = {name: [replace(video, stored=()) for video in videos] for name, videos in added.items()}
    hidden = caption_queries(old, ["hidden"], count // 4, 0)
    drawn = [*hidden, *caption_queries(old, ["learned"], count - len(hidden), 0)]
    questions = [Question(query.text, domain) for query in drawn for domain in (query.domain, None)]
    counts = {"captions": len(drawn)}
    before = _search(old, questions, work, backbone, {})
    for texts, part in (("without captions", silent), ("with captions", added)):
        after = _search(old | part, questions, work, backbone, dict.fromkeys(part, other))
        remaining = [[clip for clip in top if clip.partition(".")[0] in old] for top in after]
        are_equal = [top == earlier[: len(top)] for top, earlier in zip(remaining, before, strict=True)]
        counts[f"{texts}: equal in their domain"] = sum(are_equal[::2])
        counts[f"{texts}: equal among all domains"] = sum(are_equal[1::2])
    return counts


def _search(
    library: Library, questions: Sequence[Question], work: Path, backbone: str, backbones: dict[str, str]
) -> list[list[str]]:
    folders: dict[str, Any] = {"media": work / "media", "cache": work / "frames"}
    served = serve(library, questions, [], backbone=backbone, backbones=backbones, **folders)
    return [answer.top for answer in served.answers]


def compare(hits: Hits) -> list[list[Any]]:
    """Compute the rows of the table: both libraries, over all domains and over each half of them."""
    names = sorted({domain for _, domain in hits})
    rows = []
    for library, moved in (("first half", names[::2]), ("second half", names[1::2])):
        parts = {"all domains": names, "with the other encoder": moved}
        parts["with the same encoder"] = [name for name in names if name not in moved]
        for part, chosen in parts.items():
            row: list[Any] = [library, part]
            for depth in _DEPTHS:
                one, mixed = (
                    [hits[name, domain][depth] for domain in chosen] for name in ("one encoder", library)
                )
                row += [query_mean(one), query_mean(mixed), difference_interval(mixed, one, pooled=True)]
            rows.append(row)
    return rows


def main() -> None:
    """Measure, and write the table and the figures."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, help="folders with one subfolder of clips per domain"
    )
    parser.add_argument("--backbone", default="small")
    parser.add_argument("--other", default="lite2", help="backbone of the other half")
    parser.add_argument("--folds", type=int, default=1)
    parser.add_argument("--answers", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("cinestrata-data/bench/mixed"))
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("folders", "backbone", "other")}
    with tempfile.TemporaryDirectory() as folder:
        options["work"] = Path(folder).resolve()
        unchanged = compare_answers(count=arguments.answers, **options)
        rows = compare(measure(folds=arguments.folds, **options))
    header = ["other encoder in", "queries to domains"]
    header += [
        f"R@{depth}{suffix}" for depth in _DEPTHS for suffix in (", one encoder", ", two", ", difference")
    ]
    cells = [[_cell(value) for value in row] for row in rows]
    command = shlex.join(["python", "-m", "benchmarks.queries.mixed_encoders", *sys.argv[1:]])
    table = (
        markdown_table(header, cells)
        + "\n"
        + markdown_table(list(unchanged), [list(map(str, unchanged.values()))])
    )
    report = {"command": command, "columns": header, "rows": rows, "unchanged": unchanged}
    sys.stdout.write(write_report(arguments.out, table, report))


def _cell(value: str | float | Interval) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.1f}" if isinstance(value, float) else format_interval(value)


if __name__ == "__main__":
    main()
