"""The product and its rivals on a library of two domains, and the library of a running service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from benchmarks.queries.library_videos import LibraryVideo
from benchmarks.queries.query_comparison import (
    KEPT_KINDS,
    UNKNOWN_KINDS,
    QueryResults,
    compare_on_queries,
    compare_service,
    plan_libraries,
)
from benchmarks.queries.query_kinds import Query
from benchmarks.queries.query_report import compute_curves, compute_figures, query_tables, write_query_report
from benchmarks.queries.query_rivals import FULL_TEXT, PRODUCT, ROWS, Outcome
from media import content_hash


@pytest.mark.endurance  # ingests three libraries, each in its own process
def test_all_rows_answer_all_kinds_of_queries(query_folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    results = compare_on_queries(
        [query_folder],
        backbone="tiny",
        method="analytic",
        cache=tmp_path / "cache",
        queries=4,
        report=lines.append,
    )
    starts = sorted(line.split(":")[0] for line in lines)
    assert starts[:2] == ["seed 0, all captions", "seed 0, first captions"]
    assert starts[2].startswith("seed 0, without ")
    rows = {(outcome.row, outcome.query.kind, outcome.gallery) for outcome in results.outcomes}
    kinds = {"learned": 4, "hidden": 2, "new wording": 4, "long description": 4}
    for row in ROWS:
        for kind in kinds:
            assert {(row, kind, "all"), (row, kind, "own")} <= rows
        for kind in ("words", "random letters", "captions of domains left out"):
            assert (row, kind, "all") in rows
            assert (row, kind, "own") not in rows
    words = [
        o.values["P@min(10, R)"] for o in results.outcomes if (o.row, o.query.kind) == (FULL_TEXT, "words")
    ]
    assert words == [100] * len(words), "few captions contain each word"
    for kind, count in kinds.items():
        queries = {o.query for o in results.outcomes if o.query.kind == kind}
        assert len(queries) == count
    table = write_query_report(tmp_path / "out", results, "cinestrata bench queries shapes", "tiny")
    assert "2 domains and 18 videos under neutral names, without metadata, of which 2 are hidden" in table
    for row in ROWS:
        assert f" | {row} | " in table
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    (figure,) = [
        figure
        for figure in stored["figures"]
        if (figure["row"], figure["kind"], figure["measure"]) == (FULL_TEXT, "words", "P@min(10, R)")
    ]
    assert figure["value"] == [100, 100, 100]
    assert {answer["kind"] for answer in stored["answers"]} == {o.query.kind for o in results.outcomes}


def _results(row: str, kind: str, values: dict[str, list[float]], domain: str | None = None) -> list[Outcome]:
    """Make outcomes of one query per value."""
    measures = [dict(zip(values, outcome, strict=True)) for outcome in zip(*values.values(), strict=True)]
    return [
        Outcome(row, "all", Query(kind, str(number), frozenset("v"), 1, domain), outcome)
        for number, outcome in enumerate(measures)
    ]


def test_curve_of_the_answer_that_no_video_matches() -> None:
    results = QueryResults({"gym": 9, "zoo": 9}, 2, 1, names=True)
    results.outcomes += _results(PRODUCT, KEPT_KINDS[0], {"confidence": [0.9, 0.8, 0.7, 0.4]})
    results.outcomes += _results(PRODUCT, UNKNOWN_KINDS[-1], {"confidence": [0.6, 0.4, 0.2, 0.1]})
    (curve,) = compute_curves(results)
    assert curve["area"][0] == pytest.approx((4 + 4 + 4 + 2.5) / 16)
    assert curve["area"][1] < curve["area"][0] < curve["area"][2] == 1
    assert "| product as served | 0.906 (" in query_tables(results, compute_figures(results))


def test_captions_of_other_domains_are_not_absent() -> None:
    library = {
        domain: [
            LibraryVideo(f"{domain}{text}", domain, "", Path(text), text, (text,), {}, (text,))
            for text in ("again", f"only {domain}", f"{domain} alone")
        ]
        for domain in ("gym", "zoo")
    }
    plan = plan_libraries(library, 0, 99)[-1]
    absent = {query.text for query in plan.queries if query.kind == UNKNOWN_KINDS[-1]}
    (left_out,) = library.keys() - plan.library.keys()
    assert absent == {f"only {left_out}", f"{left_out} alone"}
    assert {query.text for query in plan.queries if query.kind == KEPT_KINDS[0]} >= {"again"}


class _Service(BaseHTTPRequestHandler):
    """Service whose library has two of the disks, one without captions, and all stripes; it finds only ``red``."""

    folder: Path

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        parameters = {name: values[0] for name, values in parse_qs(path.query).items()}
        body = self._videos(**parameters) if path.path == "/v1/videos" else self._search(**parameters)
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _videos(self, task: str, **_: str) -> dict[str, object]:
        rows = map(json.loads, (self.folder / task / "manifest.jsonl").read_text().splitlines())
        stored = [row for row in rows if task == "stripes" or row["uri"] in ("red-0.mp4", "green-0.mp4")]
        unused = {"status": "accepted", "reason": None, "effective_split": None, "metadata": {}, "bytes": 1}
        unused |= {"duration": 1.0, "added_at": "2026-01-01T00:00:00Z", "thumbnail_url": "", "stream_url": ""}
        return {
            "videos": [
                {
                    "id": f"{task} {row['uri']}",
                    "task_id": task,
                    "uri": row["uri"],
                    "captions": [] if row["uri"] == "green-0.mp4" else row["captions"],
                    "content_hash": content_hash(self.folder / task / row["uri"]),
                    **unused,
                }
                for row in stored
            ],
            "next_cursor": None,
        }

    def _search(self, q: str, **_: str) -> dict[str, object]:
        hit = {"rank": 1, "video_id": "disks red-0.mp4", "uri": "", "task": "disks", "task_id": "disks"}
        hit |= {"score": 1.0, "captions": [], "thumbnail_url": "", "stream_url": ""}
        timing = dict.fromkeys(("encode", "route", "search", "merge", "total"), 0.0)
        answer = {"query": q, "release": "r", "generation": 1, "mode": "pinned", "routing": []}
        return {**answer, "results": [hit], "confidence": 0.5, "matches": True, "timing_ms": timing}

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url(query_folder: Path) -> Iterator[str]:
    handler = type("_Handler", (_Service,), {"folder": query_folder})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_videos_are_those_of_the_service_and_bm25_has_their_captions(url: str, query_folder: Path) -> None:
    results = compare_service(url, [query_folder], seeds=1, queries=9, names=False)
    assert (results.videos, results.hidden) == ({"disks": 2, "stripes": 9}, 2)
    assert {outcome.row for outcome in results.outcomes} == {PRODUCT, FULL_TEXT}
    learned = [o for o in results.outcomes if (o.query.kind, o.gallery) == ("learned", "all")]
    right = {row: [o.values["R@1"] for o in learned if o.row == row] for row in (PRODUCT, FULL_TEXT)}
    assert sorted(right[PRODUCT]) == [0.0] * 8 + [100.0], "the one that the service finds"
    assert right[FULL_TEXT] == [100.0] * 9
    hidden = [o for o in results.outcomes if (o.row, o.query.kind, o.gallery) == (PRODUCT, "hidden", "own")]
    assert {o.query.right for o in hidden} == {
        frozenset({"disks green-0.mp4"}),
        frozenset({"stripes green-0.mp4"}),
    }
    assert {o.values["confidence"] for o in hidden} == {0.5}
