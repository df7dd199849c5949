"""Deletion and compaction from the command line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cli.main import app
from cli.service_client import ServiceClient
from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.shard_store import ShardStore
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.settings import Settings
from service.library.library_status import library_status
from service.library.shard_listing import list_shards
from tests.audited_changes import audit_entries
from tests.cli.http_problems import problem


def _run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=answer)


@pytest.mark.slow
def test_videos_are_deleted_and_compaction_frees_their_space(
    folder: Settings, publish_task: Callable[..., Manifest]
) -> None:
    publish_task("a", 5)
    publish_task("b", 4)
    refused = _run("delete", "a-1", answer="n\n")
    assert refused.exit_code == 1
    assert ShardStore(folder.index_dir).manifest().tombstones == {}
    outcome = _run("delete", "a-1", "a-2", "nobody", "--yes")
    assert (outcome.exit_code, "2 deleted" in outcome.output) == (0, True)
    looked = _run("compact", "--dry-run")
    table = [line.split() for line in looked.output.splitlines()]
    assert [row[:5] for row in table[1:3]] == [["a", "5", "2", "40.0%", "1"], ["b", "4", "0", "0.0%", "1"]]
    assert ShardStore(folder.index_dir).manifest().tombstones != {}
    before = ShardStore(folder.index_dir).manifest().shards
    done = _run("compact")
    assert "a: 2 vectors dropped" in done.output
    assert "b:" not in done.output
    after = ShardStore(folder.index_dir).manifest()
    assert (after.tombstones, after.shards["tsk_a"].count, after.shards["tsk_b"]) == ({}, 3, before["tsk_b"])
    assert [(shard.count, shard.degraded) for shard in list_shards().shards] == [(3, None), (4, None)]
    for video in range(4):
        _run("delete", f"b-{video}", "--yes")
    assert _run("compact", "b").exit_code == 0
    assert _run("compact", "c").exit_code == 1


def _recording_client(
    answers: Callable[[str], dict[str, list[str]] | None],
) -> tuple[ServiceClient, list[tuple[str, str]]]:
    """A client whose requests are recorded as (method, path) and answered by path; None is answered with 404."""
    requests: list[tuple[str, str]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        requests.append((request.method, path))
        answer = answers(path)
        return problem(404, "Not found") if answer is None else httpx.Response(200, json=answer)

    return ServiceClient("http://127.0.0.1:1", transport=httpx.MockTransport(respond)), requests


def test_http_client_deletes_videos_one_by_one() -> None:
    client, requests = _recording_client(
        lambda path: None if path.endswith("/x") else {"deleted": ["a/b"], "not_found": []}
    )
    outcome = client.remove_videos(["a/b", "x"])
    assert requests == [("DELETE", "/v1/videos/a%2Fb"), ("DELETE", "/v1/videos/x")]
    assert (outcome.deleted, outcome.not_found) == (["a/b"], ["x"])


def _files(folder: Settings, vectors: np.ndarray) -> list[Path]:
    """Files of the data folder that contain one of the vectors."""
    rows = [row.astype(np.float16).tobytes() for row in vectors]
    files = [path for path in folder.data_dir.rglob("*") if path.is_file()]
    return [path for path in files if any(row in path.read_bytes() for row in rows)]


def _vectors(folder: Settings, task: str) -> np.ndarray:
    shard = IndexSnapshot.open(ShardStore(folder.index_dir)).shard(task, fingerprint=f"encoder {task}")
    return shard.vectors(shard.ids)


@pytest.mark.slow
def test_deleted_task_is_removed_from_disk(
    folder: Settings, publish_task: Callable[..., Manifest], tmp_path: Path
) -> None:
    publish_task("a", 5)
    publish_task("b", 4)
    theirs, kept = _vectors(folder, "tsk_a"), _vectors(folder, "tsk_b")
    refused = _run("delete", "--task", "a", answer="n\n")
    assert (refused.exit_code, "Permanently delete task 'a' with all of its 5 videos" in refused.output) == (
        1,
        True,
    )
    assert ShardStore(folder.index_dir).manifest().tombstones == {}
    assert "5 deleted" in _run("delete", "--task", "a", answer="y\n").output
    assert "0 deleted" in _run("delete", "--task", "tsk_a", "--yes").output, "twice is like once"
    assert _files(folder, theirs) != []
    done = _run("compact")
    assert "a (deleted tsk_a): 5 vectors dropped" in done.output
    looked = [line.split() for line in _run("compact", "--dry-run").output.splitlines()]
    assert [row[-6:-1] for row in looked[1:3]] == [
        ["tsk_a)", "0", "0", "0.0%", "1"],
        ["b", "4", "0", "0.0%", "1"],
    ]
    assert _run("compact").exit_code == 0
    assert _files(folder, theirs) != [], "searches that read it have an hour to finish"
    for path in ShardStore(folder.index_dir).folders():
        os.utime(path, (time.time() - 7200,) * 2)
    assert _run("compact").exit_code == 0
    assert _files(folder, theirs) == []
    assert len(_files(folder, kept)) == 1
    outcome = json.loads(_run("doctor", "--json").stdout)
    (found,) = [check for check in outcome["checks"] if check["check"] == "index"]
    assert (found["ok"], "2 shards" in found["detail"]) == (True, True), found
    assert [(shard.count, shard.degraded) for shard in list_shards().shards] == [(0, None), (4, None)]
    assert _run("snapshot", str(tmp_path / "copy")).exit_code == 0
    restored = _run("restore", str(tmp_path / "copy"), "--data", str(tmp_path / "other"))
    assert restored.exit_code == 0, restored.output
    copy = ShardStore(tmp_path / "other" / "index")
    assert (copy.manifest(), audit(copy).problems) == (ShardStore(folder.index_dir).manifest(), [])


@pytest.mark.parametrize("arguments", [[], ["--yes"]])
def test_active_task_is_refused_before_the_prompt(
    folder: Settings, publish_task: Callable[..., Manifest], arguments: list[str]
) -> None:
    publish_task("a", 3)
    with session_scope(write=True) as session:
        session.get_one(Task, "tsk_a").state = "training"
    refused = _run("delete", "--task", "a", *arguments, answer="y\n")
    assert refused.exit_code == 1
    assert "Task 'a' is training and cannot be deleted" in refused.output
    assert "cinestrata tasks cancel tsk_a" in refused.output
    assert "Permanently delete" not in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "nobody", "--yes"], "There is no task 'nobody'"),
        (["--yes"], "Name videos, or one task"),
        (["a-1", "--task", "a", "--yes"], "Name videos, or one task"),
    ],
)
def test_delete_requires_videos_or_one_task(
    folder: Settings, publish_task: Callable[..., Manifest], arguments: list[str], message: str
) -> None:
    publish_task("a", 3)
    outcome = _run("delete", *arguments)
    status = 2 if message.startswith("Name") else 1
    assert (outcome.exit_code, message in outcome.output) == (status, True), outcome.output
    assert ShardStore(folder.index_dir).manifest().tombstones == {}


def test_interrupted_compaction_is_completed_by_the_next(
    folder: Settings, publish_task: Callable[..., Manifest]
) -> None:
    publish_task("a", 3)
    _run("delete", "--task", "a", "--yes")
    ShardStore(folder.index_dir).compact("tsk_a")  # and then it died
    assert library_status().degraded.keys() == {"a (deleted tsk_a)"}
    assert _run("compact").exit_code == 0
    assert library_status().degraded == {}
    (entry,) = audit_entries(action=["shard"])
    assert (entry.action, entry.actor_kind, entry.target) == ("shard.compact", "cli", "tsk_a")


def test_http_client_deletes_a_task_by_id() -> None:
    client, requests = _recording_client(lambda path: {"deleted": ["a"], "not_found": []})
    assert client.delete_task("tsk_1").deleted == ["a"]
    assert requests == [("DELETE", "/v1/tasks/tsk_1")]
