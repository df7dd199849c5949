"""What a search costs as a whole: ``python -m benchmarks.search.search_cost --out DIR``, the first part of ``make bench-search``.

Writes search.json and search.md, and what grows with the library as search.html and SVG. Every row compares with a
peer or a bound in the same run; times by themselves mean nothing on another machine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import open_clip
import structlog
import torch
from safetensors.torch import save_file

from benchmarks.reporting.charts import LineChart, write_page
from benchmarks.reporting.markdown_tables import markdown_table
from benchmarks.search.search_latency import K, bound, compare, recall_of_routes, serve
from benchmarks.search.server_load import Load, load, memory, serving
from benchmarks.search.synthetic_library import Library, make_library
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from service.catalog.migrations import upgrade
from service.core.settings import settings
from service.search.engine import SearchEngine

ROUNDS = 5
_MILLION = 10**6


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        what: was measured.
        ratio: the figure that the target is about.
        target: in words.
        met: whether it is reached.
        detail: the figures behind it.
    """

    what: str
    ratio: float
    target: str
    met: bool
    detail: str


class _Bench:
    """Makes libraries as they are needed, and keeps them: several measures look at the same one."""

    def __init__(self, root: Path, captions: int) -> None:
        self.root = root
        self.captions = captions
        self._libraries: dict[tuple[str, int, int], Library] = {}
        self._next_id = 1

    def library(self, backbone: Backbone, tasks: int, vectors: int) -> Library:
        key = backbone.name, tasks, vectors
        if key not in self._libraries:
            folder = self.root / f"library-{len(self._libraries)}"
            self._libraries[key] = make_library(
                folder,
                backbone,
                tasks=tasks,
                vectors=vectors,
                captions=self.captions,
                first_id=self._next_id,
                seed=self._next_id,
            )
            self._next_id += vectors
        return self._libraries[key]


def hundred_over_one(bench: _Bench, backbone: Backbone, vectors: int, queries: int) -> list[Row]:
    """A hundred domains against one, of as many vectors in all."""
    one, hundred = (bench.library(backbone, tasks, vectors) for tasks in (1, 100))
    services = serve(one), serve(hundred)
    pairs = [(a.text, b.text) for a, b in zip(one.asked, hundred.asked, strict=False)][:queries]
    found = compare(_search(services[0]), _search(services[1]), pairs, ROUNDS)
    rows = [
        Row(
            f"100 domains over 1, {vectors:,} vectors, {backbone.name.split('/')[0]}: {name}",
            ratio,
            "≤ 1.2",
            ratio <= 1.2,
            f"{first:.1f} and {second:.1f} ms; {found.second.tasks:.1f} of 100 domains encoded",
        )
        for name, ratio, first, second in (
            ("p50", found.p50_ratio, found.first.p50, found.second.p50),
            ("p99", found.p99_ratio, found.first.p99, found.second.p99),
        )
    ]
    recalls = recall_of_routes(services[1], hundred.asked[queries:], ["auto", "all"])
    share = recalls["auto"] / recalls["all"]
    detail = f"R@{K} {100 * recalls['auto']:.1f} and {100 * recalls['all']:.1f}"
    rows.append(
        Row(f"R@{K} of `auto` over `all` routes, 100 domains", share, "≥ 0.99", share >= 0.99, detail)
    )
    vague = [(text, text) for text in hundred.vague]
    worst = compare(_search(services[0]), _search(services[1]), vague, ROUNDS)
    rows.append(
        Row(
            "the same for queries without a word of any domain: p50",
            worst.p50_ratio,
            "none",
            True,
            f"{worst.first.p50:.1f} and {worst.second.p50:.1f} ms; {worst.second.tasks:.1f} domains encoded",
        )
    )
    return rows


def over_the_bound(bench: _Bench, backbone: Backbone, vectors: int, queries: int) -> Row:
    """A whole search against one frozen encoding and one scan."""
    library = bench.library(backbone, 1, vectors)
    found = compare(
        bound(library, backbone),
        _search(serve(library)),
        [(a.text, a.text) for a in library.asked[:queries]],
        ROUNDS,
    )
    return Row(
        f"search over its bound, {vectors:,} vectors, {backbone.name.split('/')[0]}",
        found.p50_ratio,
        "≤ 1.25",
        found.p50_ratio <= 1.25,
        f"{found.first.p50:.1f} and {found.second.p50:.1f} ms",
    )


def many_clients(bench: _Bench, backbone: Backbone, vectors: int) -> Row:
    """Sixteen clients against one, each round on a server that has heard none of the texts."""
    library = bench.library(backbone, 100, vectors)
    texts = [asked.text for asked in library.asked]
    warm, alone = len(texts) // 10, len(texts) // 5
    rounds: list[tuple[Load, Load]] = []
    for _ in range(ROUNDS):
        with serving(library.configured) as (url, pid):
            load(url, pid, texts[:warm], 4)
            one = load(url, pid, texts[warm : warm + alone], 1)
            rounds.append((one, load(url, pid, texts[warm + alone :], 16)))
    ratio = median(many.rate / one.rate for one, many in rounds)
    one, many = (
        Load(*(median(values) for values in zip(*(astuple(each[place]) for each in rounds), strict=True)))
        for place in (0, 1)
    )
    return Row(
        f"searches a second, 16 clients over 1, {backbone.name.split('/')[0]}",
        ratio,
        "≥ 3",
        ratio >= 3,
        f"{one.rate:.0f} and {many.rate:.0f} a second; a search takes {one.server:.2f} and {many.server:.2f} ms of a "
        f"processor, and its client {one.client:.2f} and {many.client:.2f} ms of the same {os.cpu_count()}",
    )


def memory_of_a_process(bench: _Bench, backbone: Backbone, vectors: int) -> Row:
    """What a server takes for its vectors: in memory at all, beyond what it takes for a library of a thousand."""
    taken = []
    for size in (1000, vectors):
        library = bench.library(backbone, 1, size)
        with serving(library.configured) as (url, pid):
            load(url, pid, [asked.text for asked in library.asked[:100]], 4)
            taken.append(memory(pid))
    small, large = taken
    stored = 2 * (vectors - 1000) * backbone.dim
    ratio = (large.mapped + large.own - small.mapped - small.own) / stored
    own = (large.own - small.own) / stored
    return Row(
        f"memory for {vectors:,} × {backbone.dim} vectors over their bytes in half precision",
        ratio,
        "≤ 1.2",
        ratio <= 1.2,
        f"{own:.2f} of it the process's own, the rest mapped and shared; without vectors a process takes "
        f"{(small.mapped + small.own) / 2**20:.0f} MiB, {small.own / 2**20:.0f} of them its own",
    )


def growth(bench: _Bench, backbone: Backbone, sizes: Sequence[tuple[int, int]], queries: int) -> list[float]:
    """p50 of libraries of (domains, vectors), in milliseconds."""
    middle: list[float] = []
    for tasks, vectors in sizes:
        library = bench.library(backbone, tasks, vectors)
        texts = [(asked.text, asked.text) for asked in library.asked[:queries]]
        service = serve(library)
        middle.append(compare(_search(service), lambda _: None, texts, ROUNDS).first.p50)
    return middle


def _search(service: SearchEngine):  # type: ignore[no-untyped-def]
    return lambda text: service.search(text, K)


def _shaped_like_vit_b_32(folder: Path) -> Backbone:
    """Random weights: speed does not depend on what they are."""
    torch.manual_seed(0)
    path = folder / "vit-b-32.safetensors"
    clip: Any = open_clip.create_model("ViT-B-32", pretrained=None)
    save_file({name: tensor.contiguous() for name, tensor in clip.state_dict().items()}, path)
    return load_backbone(f"open_clip:ViT-B-32/{path}")


def main() -> None:
    """Run all, print the table, write it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.search_cost", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("bench-search"), help="folder of the results")
    parser.add_argument("--vectors", type=int, default=_MILLION, help="of the large libraries")
    parser.add_argument("--most-tasks", type=int, default=1000, help="of the longest row of domains")
    parser.add_argument("--most-vectors", type=int, default=10**7, help="of the largest library of all")
    parser.add_argument("--queries", type=int, default=500, help="of each comparison")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)  # as the service does
    with tempfile.TemporaryDirectory(prefix="cinestrata-bench-") as folder:
        root = Path(folder)
        os.environ |= {"CINESTRATA_DATA_DIR": folder, "CINESTRATA_LOG_LEVEL": "ERROR"}
        settings.cache_clear()
        upgrade(settings())
        bench, tiny, shaped = (
            _Bench(root, 2 * chosen.queries),
            load_backbone("tiny"),
            _shaped_like_vit_b_32(root),
        )
        small, queries = chosen.vectors // 10, chosen.queries
        rows: list[Row] = []
        for measured in (
            lambda: hundred_over_one(bench, tiny, small, queries),
            lambda: hundred_over_one(bench, shaped, small, queries // 2),
            lambda: [over_the_bound(bench, tiny, chosen.vectors, queries)],
            lambda: [over_the_bound(bench, shaped, chosen.vectors, queries // 2)],
            lambda: [many_clients(bench, tiny, small)],
            lambda: [many_clients(bench, shaped, small)],
            lambda: [memory_of_a_process(bench, shaped, chosen.vectors)],
        ):
            for row in measured():
                print(f"{row.what}: {row.ratio:.2f} ({row.target}; {row.detail})", flush=True)
                rows.append(row)
        tasks = [count for count in (1, 3, 10, 30, 100, 300, 1000) if count <= chosen.most_tasks]
        vectors = [10**power for power in range(4, 8) if 10**power <= chosen.most_vectors]
        by_tasks = growth(bench, tiny, [(count, small) for count in tasks], queries)
        by_vectors = growth(bench, tiny, [(10, count) for count in vectors], queries // 2)
    charts = [
        LineChart(
            f"p50 in ms, {small:,} vectors in T domains",
            [f"{n:,}" for n in tasks],
            {"p50": by_tasks},
        ),
        LineChart(
            "p50 of a search in ms, N vectors in 10 domains", [f"{n:,}" for n in vectors], {"p50": by_vectors}
        ),
    ]
    write_page(chosen.out / "search.html", "What a search costs", charts)
    for name, chart in zip(("tasks", "vectors"), charts, strict=True):
        (chosen.out / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")
    header = ["measured", "ratio", "target", "met", "figures"]
    cells = [[r.what, f"{r.ratio:.2f}", r.target, "yes" if r.met else "**no**", r.detail] for r in rows]
    (chosen.out / "search.md").write_text(markdown_table(header, cells) + "\n", encoding="utf-8")
    facts = {
        "rows": [asdict(row) for row in rows],
        "p50_by_tasks": dict(zip(map(str, tasks), by_tasks, strict=True)),
        "p50_by_vectors": dict(zip(map(str, vectors), by_vectors, strict=True)),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "torch": torch.__version__},
        "arguments": {name: str(value) for name, value in vars(chosen).items()},
    }
    (chosen.out / "search.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(f"Written to {chosen.out}.")


if __name__ == "__main__":
    main()
