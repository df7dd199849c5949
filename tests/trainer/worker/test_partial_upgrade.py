"""Partial upgrades: videos that cannot be read stay in the previous shard, and both are one domain."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from benchmarks.chaos.library_checker import CatalogReader, ExpectedVideos, LibraryChecker
from cinestrata_schemas.videos import FeedbackSpec
from cli.commands import task_commands
from cli.service_client import ServiceClient
from service.catalog.database import dispose, session_scope
from service.catalog.tables import Moment, Video
from service.core.list_parameters import FeedbackFilters
from service.core.settings import settings
from service.library.deletion import compact, delete_task, delete_videos, storage_usage
from service.library.video_changes import give_feedback, list_feedback
from service.tasks import commands, upgrades
from service.tasks.lifecycle import state_machine
from tests.cli.invocation import run
from tests.trainer.worker.library_state import (
    catalog_vector_ids,
    expire_leases,
    help_once,
    learn,
    open_store,
    post_append,
    require_same_videos,
    run_append,
    run_in_process,
    run_job,
    shard_vectors,
)
from tests.trainer.worker.test_upgrade_job import POINTS, outcome_of, post_upgrade, stored_facts
from trainer.worker import learning_job, shared_embedding


def lose(domain: str, *numbers: int) -> Callable[[], object]:
    """Move videos of a domain away; the result moves them back."""
    folder = settings().media_root / domain
    away = [(folder / f"{number}.mp4", folder / f"{number}.gone") for number in numbers]
    for path, gone in away:
        path.rename(gone)
    return lambda: [gone.rename(path) for path, gone in away]


def shards_of(domain: str) -> list[set[str]]:
    """Return the videos in each shard of a domain, the current one last."""
    names = {vector_id: video for video, vector_id in catalog_vector_ids(domain).items()}
    store = open_store()
    manifest = store.manifest()
    shards = []
    for key in manifest.keys_of(domain):
        ids = store.open(manifest.segments(key), store.tombstones(manifest, key)).ids.tolist()
        shards.append({names[number] for number in ids if number in names})
    return shards


@pytest.mark.slow
def test_videos_without_files_stay_and_follow_when_their_files_are_back(
    library: Any, post_videos: Callable[..., str]
) -> None:
    day = post_videos("day", seconds={2: 30, 3: 30})
    learn(day)
    assert run_append(post_append(day, {"red": "red"}, ["the red video"])).state == "ready"
    give_feedback(FeedbackSpec(text="a kite", video_id="day-3", verdict="right"))
    before, ids, vectors = stored_facts(day), catalog_vector_ids(day), shard_vectors(day)
    with session_scope() as session:
        rows = (
            select(Video.id, Video.captions).order_by(Video.id),
            select(Moment.vector_id, Moment.start_seconds),
        )
        texts = [session.execute(query).all() for query in rows]
    restore = lose("day", 1, 3)
    assert "'day-1': its decoded frames are gone" in (run_job(post_upgrade(day)).error or "")
    assert stored_facts(day) == before
    first = learn(post_upgrade(day, partial=True))
    outcome = outcome_of(first.id)
    assert (outcome.status, outcome.queries, outcome.remaining) == ("undoable", 1, 2)
    assert shards_of(day) == [{"day-1", "day-3"}, {"day-0", "day-2", "day-4", "day-5", "new-red"}]
    require_same_videos(day)
    after = shard_vectors(day)
    for video in (ids["day-1"], ids["day-3"]):
        assert (after[video] == vectors[video]).all()
    assert catalog_vector_ids(day) == ids
    with session_scope() as session:
        assert [session.execute(query).all() for query in rows] == texts
    assert {entry.video_id for entry in list_feedback(FeedbackFilters(text="a kite")).feedback} == {"day-3"}
    upgrades.undo_upgrade(day)
    assert stored_facts(day) == before
    require_same_videos(day)

    learn(post_upgrade(day, partial=True))
    upgrades.accept_upgrade(day)
    assert not open_store().manifest().replaced
    (usage,) = storage_usage(day)
    assert (usage.shards, usage.is_compactable) == (2, True)
    assert not compact(day).is_compactable
    require_same_videos(day)
    assert {video: after[video].tobytes() for video in after} == {
        v: x.tobytes() for v, x in shard_vectors(day).items()
    }
    night = post_videos("night", videos=4)
    learn(night)
    assert run_append(post_append(day, {"blue": "blue"}, ["the blue video"])).state == "ready"
    refused = run_job(post_upgrade(day, partial=True))
    assert (refused.state, refused.error) == ("failed", "No further video of the domain can be read.")
    assert run_job(post_upgrade(day)).state == "failed"
    require_same_videos(day, night)
    delete_videos(["day-1"])
    require_same_videos(day, night)
    restore()
    learn(post_upgrade(day))
    assert shards_of(day) == [{f"day-{n}" for n in (0, 2, 3, 4, 5)} | {"new-red", "new-blue"}]
    require_same_videos(day, night)
    upgrades.undo_upgrade(day)
    assert shards_of(day)[0] == {"day-3"}
    delete_videos(["day-3"])
    require_same_videos(day, night)
    compact(day)
    assert open_store().manifest().keys_of(day) == [day]
    require_same_videos(day, night)


def test_partial_upgrade_of_unreadable_or_deleted_domain_leaves_nothing(learned_task: str) -> None:
    before = stored_facts(learned_task)
    restore = lose("day", *range(6))
    view = run_job(post_upgrade(learned_task, partial=True))
    assert (view.state, view.error) == ("failed", "No video of the domain can be read.")
    assert stored_facts(learned_task) == before
    restore()
    (settings().media_root / "day" / "4.mp4").write_bytes(
        (settings().media_root / "day" / "5.mp4").read_bytes()
    )
    learn(post_upgrade(learned_task, partial=True))
    assert shards_of(learned_task)[0] == {"day-4"}, "another file has its name"
    delete_task(learned_task)
    manifest = open_store().manifest()
    assert not any(manifest.live_count(key) for key in manifest.shards)


@pytest.mark.slow
def test_killed_partial_upgrade_continues(learned_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "MAX_ATTEMPTS", 20)
    monkeypatch.setattr(state_machine, "MAX_LOST_TRAININGS", 20)
    monkeypatch.setattr(shared_embedding, "EMBED_CHUNK_VIDEOS", 2)
    before = stored_facts(learned_task)
    restore = lose("day", 1, 3)
    upgrade = post_upgrade(learned_task, partial=True)
    for point, patch in POINTS.items():
        assert run_in_process(learning_job.run_learning_job, upgrade, patch) == -signal.SIGKILL, point
        if point in ("manifest replaced", "in catalog rows", "committed"):
            assert shards_of(learned_task) == [{"day-1", "day-3"}, {f"day-{n}" for n in (0, 2, 4, 5)}], point
        else:
            assert stored_facts(learned_task) == before
        if point == "manifest replaced":
            restore()
        if point != "committed":
            expire_leases(upgrade)
    assert commands.get_task(upgrade).state == "ready"
    assert outcome_of(upgrade).remaining == 2
    require_same_videos(learned_task)
    upgrades.undo_upgrade(learned_task)
    assert stored_facts(learned_task) == before


def test_other_workers_embed_what_can_be_read(learned_task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lose("day", 1, 3)
    upgrade = post_upgrade(learned_task, partial=True)
    helped = help_once(monkeypatch, upgrade)
    learn(upgrade)
    assert helped == [2, 0]
    require_same_videos(learned_task)


def test_command_and_backup(learned_task: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(task_commands, "follow", lambda client, ids: [run_job(task) for task in ids])
    monkeypatch.setattr(ServiceClient, "lacks_workers", lambda client: False)
    lose("day", 1)
    outcome = run("upgrade", "day", "--backbone", "lite2", "--partial")
    assert outcome.exit_code == 0, outcome.output
    assert "1 of 6 videos can't be read" in " ".join(outcome.output.split())
    assert run("upgrade", "day", "--partial", "--undo").exit_code == 2
    dispose()
    restored = tmp_path / "restored"
    for arguments in (("snapshot", tmp_path / "copy"), ("restore", tmp_path / "copy", "--data", restored)):
        outcome = run(*arguments)
        assert outcome.exit_code == 0, outcome.output
    dispose()
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(restored))
    settings.cache_clear()
    assert shards_of(learned_task) == [{"day-1"}, {f"day-{n}" for n in (0, 2, 3, 4, 5)}]
    require_same_videos(learned_task)
    with sqlite3.connect(restored / "catalog.sqlite3") as connection:
        assert LibraryChecker(restored, CatalogReader(connection)).check(ExpectedVideos()) == []
