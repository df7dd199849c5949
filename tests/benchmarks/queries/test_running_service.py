"""The library of a running service, asked over HTTP."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from benchmarks.errors import ProtocolError
from benchmarks.queries.query_comparison import compare_service
from benchmarks.queries.query_rivals import FULL_TEXT, PRODUCT
from media import content_hash


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
        found = {"rank": 1, "video_id": "disks red-0.mp4", "uri": "", "task": "disks", "task_id": "disks"}
        found |= {"score": 1.0, "captions": [], "thumbnail_url": "", "stream_url": ""}
        timing = dict.fromkeys(("encode", "route", "search", "merge", "total"), 0.0)
        answer = {"query": q, "release": "r", "generation": 1, "mode": "pinned", "routing": []}
        return {**answer, "results": [found], "confidence": 0.5, "matches": True, "timing_ms": timing}

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


def test_a_domain_that_the_service_lacks(url: str, query_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(query_folder, folder)
    for name in ("red-0.mp4", "green-0.mp4"):
        (folder / "disks" / name).write_bytes(name.encode())
    with pytest.raises(ProtocolError, match="no video of domain 'disks'"):
        compare_service(url, [folder], seeds=1, queries=9, names=False)
