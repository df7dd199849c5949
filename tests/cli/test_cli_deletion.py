"""Deleting and compacting from the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from cli import client
from cli.main import app
from index import Manifest, ShardStore
from service.overview import overview
from service.settings import Settings


def _run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=answer)


def test_videos_are_deleted_and_their_room_is_got_back(
    folder: Settings, lay_down: Callable[..., Manifest]
) -> None:
    lay_down("a", 5)
    lay_down("b", 4)
    refused = _run("delete", "a-1", answer="n\n")
    assert refused.exit_code == 1
    assert ShardStore(folder.index_dir).manifest().tombstones == {}
    told = _run("delete", "a-1", "a-2", "nobody", "--yes")
    assert (told.exit_code, "2 deleted" in told.output) == (0, True)
    looked = _run("compact", "--look")
    table = [line.split() for line in looked.output.splitlines()]
    assert [row[:5] for row in table[1:3]] == [["a", "5", "2", "40.0%", "1"], ["b", "4", "0", "0.0%", "1"]]
    assert ShardStore(folder.index_dir).manifest().tombstones != {}
    before = ShardStore(folder.index_dir).manifest().shards
    done = _run("compact")
    assert "a: 2 vectors dropped" in done.output
    assert "b:" not in done.output
    after = ShardStore(folder.index_dir).manifest()
    assert (after.tombstones, after.shards["tsk_a"].count, after.shards["tsk_b"]) == ({}, 3, before["tsk_b"])
    assert [(shard.count, shard.degraded) for shard in overview().shards] == [(3, None), (4, None)]
    for video in range(4):
        _run("delete", f"b-{video}", "--yes")
    assert _run("compact", "b").exit_code == 0
    assert _run("compact", "c").exit_code == 1


def test_over_http_every_id_is_asked_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def answer(self: client.Remote, method: str, path: str, **_: object) -> dict[str, list[str]]:
        asked.append((method, path))
        return (
            {"deleted": ["a b"], "not_found": []}
            if "a" in path.split("/")[-1]
            else {"deleted": [], "not_found": ["x"]}
        )

    monkeypatch.setattr(client.Remote, "_ask", answer)
    told = client.Remote("http://127.0.0.1:1").delete(["a/b", "x"])
    assert asked == [("DELETE", "/videos/a%2Fb"), ("DELETE", "/videos/x")]
    assert (told.deleted, told.not_found) == (["a b"], ["x"])
