"""Deletion and compaction from the command line."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.settings import Settings
from service.library.library_listing import list_shards
from tests.cli.invocation import run


@pytest.mark.slow
def test_videos_are_deleted_and_compaction_frees_their_space(
    folder: Settings, publish_task: Callable[..., Manifest]
) -> None:
    publish_task("a", 5)
    publish_task("b", 4)
    refused = run("delete", "a-1", given="n\n")
    assert refused.exit_code == 1
    assert ShardStore(folder.index_dir).manifest().tombstones == {}
    outcome = run("delete", "a-1", "a-2", "nobody", "--yes")
    assert (outcome.exit_code, "2 deleted" in outcome.output) == (0, True)
    looked = run("compact", "--dry-run")
    table = [line.split() for line in looked.output.splitlines()]
    assert [row[:5] for row in table[1:3]] == [["a", "5", "2", "40.0%", "1"], ["b", "4", "0", "0.0%", "1"]]
    assert ShardStore(folder.index_dir).manifest().tombstones != {}
    before = ShardStore(folder.index_dir).manifest().shards
    done = run("compact")
    assert re.search(r"a: 2 vectors dropped, \d+ bytes before, \d+ bytes now", done.output)
    assert "b:" not in done.output
    after = ShardStore(folder.index_dir).manifest()
    assert (after.tombstones, after.shards["tsk_a"].count, after.shards["tsk_b"]) == ({}, 3, before["tsk_b"])
    assert [(shard.count, shard.degraded) for shard in list_shards().shards] == [(3, None), (4, None)]
    for video in range(4):
        run("delete", f"b-{video}", "--yes")
    assert run("compact", "b").exit_code == 0
    assert run("compact", "c").exit_code == 1


@pytest.mark.parametrize("arguments", [[], ["--yes"]])
def test_active_task_is_refused_before_the_prompt(
    folder: Settings, publish_task: Callable[..., Manifest], arguments: list[str]
) -> None:
    publish_task("a", 3)
    with session_scope(write=True) as session:
        session.get_one(Task, "tsk_a").state = "training"
    refused = run("delete", "--task", "a", *arguments, given="y\n")
    assert refused.exit_code == 1
    assert "Task 'a' is training and cannot be deleted" in refused.output
    assert "cinestrata tasks cancel tsk_a" in refused.output
    assert "Permanently delete" not in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "nobody", "--yes"], "There is no task 'nobody'"),
        (["--yes"], "Give video IDs, or one task"),
        (["a-1", "--task", "a", "--yes"], "Give video IDs, or one task"),
    ],
)
def test_delete_requires_videos_or_one_task(
    folder: Settings, publish_task: Callable[..., Manifest], arguments: list[str], message: str
) -> None:
    publish_task("a", 3)
    outcome = run("delete", *arguments)
    status = 2 if message.startswith("Give") else 1
    assert (outcome.exit_code, message in outcome.output) == (status, True), outcome.output
    assert ShardStore(folder.index_dir).manifest().tombstones == {}
