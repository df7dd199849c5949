"""Upgrades: a domain is learned again on another backbone, and its shard takes the place of the previous one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from cinestrata_schemas.tasks import RetrySpec, TaskDetails, UpgradeOutcome, UpgradeSpec
from cinestrata_schemas.videos import FeedbackSpec
from cli.commands import task_commands
from cli.service_client import ServiceClient
from index.shard_store import ShardStore
from service.catalog.database import now, session_scope
from service.catalog.tables import Moment, Reading, Recall, Release, Shard, Task, Video
from service.core.errors import Conflict, InvalidInput
from service.core.list_parameters import FeedbackFilters, TaskFilters
from service.core.settings import settings
from service.library.deletion import delete_task, delete_videos
from service.library.library_listing import list_tasks
from service.library.recall_matrix import read_recall_matrix
from service.library.release_serving import serve_release
from service.library.video_changes import give_feedback, list_feedback
from service.tasks import commands, upgrades
from service.tasks.lifecycle import Publication, state_machine
from tests.cli.invocation import run
from tests.trainer.worker.library_state import (
    call_before,
    catalog_vector_ids,
    die_after,
    die_before,
    expire_leases,
    help_once,
    interrupt,
    learn,
    open_store,
    post_append,
    recall_cells,
    require_same_videos,
    run_append,
    run_in_process,
    run_job,
    shard_vectors,
)
from trainer.published_library import Library
from trainer.worker import append_job, learning_job

Post = Callable[..., str]


def post_upgrade(domain: str, **fields: Any) -> str:
    """Return the ID of the task that upgrades a domain to ``lite2``, or as given."""
    return upgrades.upgrade_domain(domain, UpgradeSpec(**{"backbone": "lite2", **fields})).id


def outcome_of(upgrade: str) -> UpgradeOutcome:
    """Return what a published upgrade changed."""
    outcome = commands.get_task(upgrade).progress.upgrade
    assert outcome is not None
    return outcome


def recall_figures() -> dict[tuple[Any, ...], float]:
    """Return Recall@1 by cell of the recall matrix."""
    return {cell: recall.r1 for cell, recall in recall_cells().items()}


def make_old(upgrade: str) -> None:
    """Make an upgrade old enough that maintenance accepts it."""
    with session_scope(write=True) as session:
        session.get_one(Task, upgrade).finished_at = now(session) - timedelta(days=upgrades.UNDO_DAYS + 1)


def stored_facts(domain: str) -> tuple[Any, ...]:
    """Return what an undone upgrade restores: vectors, manifest entries and catalog rows of a domain."""
    vectors = {video: vector.tobytes() for video, vector in shard_vectors(domain).items()}
    columns = ["method", "settings", "backbone", "release_id", "trained", "counts"]
    with session_scope() as session:
        task = session.get_one(Task, domain)
        shard = session.scalars(select(Shard).where(Shard.task_id == domain)).one()
        rows = [getattr(task, name) for name in columns], shard.id, shard.release_id, shard.count
    return vectors, open_store().manifest().segments(domain), rows


def test_domain_is_learned_again_on_another_backbone_and_the_upgrade_undone(
    library: Any, post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = post_videos("day", seconds={3: 30})
    learn(day)
    night = post_videos("night", videos=4)
    learn(night)
    assert run_append(post_append(day, {"red": "red"}, ["the red video"])).state == "ready"
    give_feedback(FeedbackSpec(text="a kite", video_id="day-3", verdict="right"))
    before, other, ids = stored_facts(day), stored_facts(night), catalog_vector_ids(day)
    with session_scope() as session:
        moments = session.execute(select(Moment.vector_id, Moment.start_seconds)).all()
    assert moments

    with session_scope(write=True) as session:
        session.get_one(Task, day).read = "file"
    upgrade = post_upgrade(day)
    view = commands.get_task(upgrade)
    assert (view.into, view.upgrades, view.counts.videos, view.slug) == (day, True, 0, None)
    assert [task.id for task in list_tasks(TaskFilters(kind="upgrade")).tasks] == [upgrade]
    assert upgrade not in [
        task.id for kind in ("domain", "append") for task in list_tasks(TaskFilters(kind=kind)).tasks
    ]
    for refused in (post_upgrade, upgrades.undo_upgrade):
        with pytest.raises(Conflict, match=f"The upgrade {upgrade} of 'day' is not finished"):
            refused(day)
    during: list[tuple[Any, ...]] = []
    with monkeypatch.context() as patch:
        call_before(patch, learning_job, "evaluate_task", lambda: during.append(stored_facts(day)))
        view = learn(upgrade)
    assert during == [before], "nothing changes until the upgrade is published"
    after = commands.get_task(day)
    with session_scope() as session:
        queued = session.execute(select(Reading.source, Reading.state, Video.task_id).join(Video)).all()
    assert queued == [("file", "pending", day)] * after.counts.accepted
    assert (after.backbone, after.release) == ("lite2", view.release)
    assert (after.learned_order, after.slug) == (1, "day")
    assert (after.counts.train, after.counts.appended) == (5, 0)
    outcome = outcome_of(upgrade)
    assert (outcome.status, outcome.queries) == ("undoable", 2)
    assert None not in (outcome.r1_before, outcome.r1_after)
    require_same_videos(day, night)
    assert stored_facts(night) == other
    assert catalog_vector_ids(day) == ids
    assert {entry.video_id for entry in list_feedback(FeedbackFilters(text="a kite")).feedback} == {"day-3"}
    with session_scope() as session:
        assert session.execute(select(Moment.vector_id, Moment.start_seconds)).all() == moments
        release = session.scalars(select(Release).where(Release.task_id == upgrade)).one()
        assert (release.learned_order, release.id) == (3, view.release)
        cells = session.execute(select(Recall.task_order).where(Recall.release_order == 3)).scalars()
        assert set(cells) == {1}, "other domains are on another lineage"
    library = Library(open_store())
    assert [[task.name for task in lineage.tasks] for lineage in library.lineages] == [
        ["day"],
        ["day", "night"],
    ]
    assert [library.serves(task) for task in library.lineages[1].tasks] == [False, True]
    matrix = read_recall_matrix()
    assert matrix.tasks == ["day", "night"]
    assert matrix.after == ["day", "night", view.name]
    assert not [*settings().cache_dir.glob("*/*.npy")], "frames are deleted once the upgrade is ready"

    # The next domain continues the release of the newest domain's backbone, which is not the upgraded one.
    dusk = post_videos("dusk", videos=4)
    assert commands.get_task(dusk).backbone != "lite2"
    learn(dusk)
    assert [[task.name for task in each.tasks] for each in Library(open_store()).lineages] == [
        ["day", "night", "dusk"],
        ["day"],
    ]
    upgrades.undo_upgrade(day)
    assert stored_facts(day) == before
    require_same_videos(day, night, dusk)
    with session_scope() as session:
        assert session.get_one(Task, day).caption_edits == 1
    assert outcome_of(upgrade).status == "undone"
    with pytest.raises(Conflict, match="no upgrade that can be undone"):
        upgrades.undo_upgrade(day)
    assert run_append(post_append(day, {"blue": "blue"})).state == "ready"
    require_same_videos(day)
    # The same upgrade again has another shard, with the appended video.
    assert learn(post_upgrade(day)).state == "ready"
    require_same_videos(day, night, dusk)


@pytest.mark.slow
def test_repeated_and_reverted_upgrades_keep_releases_and_the_recall_matrix(learned_task: str) -> None:
    before = commands.get_task(learned_task)
    first = learn(post_upgrade(learned_task))
    vectors = shard_vectors(learned_task)
    upgrades.undo_upgrade(learned_task)
    second = learn(post_upgrade(learned_task))
    assert second.release == first.release
    np.testing.assert_equal(shard_vectors(learned_task), vectors)
    require_same_videos(learned_task)
    assert outcome_of(second.id).status == "undoable"
    upgraded, figures = stored_facts(learned_task), recall_figures()
    assert {release for release, *_ in figures} == {0, 1, 3}, "the undone upgrade has no figures"
    back = learn(post_upgrade(learned_task, backbone=before.backbone))
    assert (back.state, back.release) == ("ready", before.release)
    assert [outcome_of(task.id).status for task in (first, second)] == ["undone", "accepted"]
    after = recall_figures()
    assert {release for release, *_ in after} == {0, 1, 3, 4}, "the way back is measured in a row of its own"
    assert {cell: recall for cell, recall in after.items() if cell[0] < 4} == figures
    undone = upgrades.undo_upgrade(learned_task)
    assert (undone.backbone, undone.release) == ("lite2", second.release)
    assert (stored_facts(learned_task), recall_figures()) == (upgraded, figures)


@pytest.mark.slow
def test_accepted_old_and_deleted_upgrades_drop_the_previous_shard(
    post_videos: Post, learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(post_upgrade(learned_task))
    delete_videos(["day-5"])
    assert open_store().manifest().replaced
    upgrades.settle_old_upgrades()
    assert open_store().manifest().replaced, "14 days are not over"
    for accept in (upgrades.accept_upgrade, upgrades.accept_upgrade):
        assert accept(learned_task).backbone == "lite2"
    assert not open_store().manifest().replaced
    with pytest.raises(Conflict, match="no upgrade that can be undone"):
        upgrades.undo_upgrade(learned_task)

    old = post_upgrade(learned_task, backbone="tiny")
    learn(old)
    delete_videos(["day-4"])
    upgrades.undo_upgrade(learned_task)
    assert catalog_vector_ids(learned_task).keys() == {"day-0", "day-1", "day-2", "day-3"}
    require_same_videos(learned_task)
    make_old(learn(post_upgrade(learned_task, backbone="tiny")).id)
    night = post_videos("night", videos=4)
    learn(night)
    make_old(learn(post_upgrade(night)).id)
    accept = upgrades.accept_upgrade
    with monkeypatch.context() as patch:

        def refuse_day(domain: str) -> TaskDetails:
            if domain == learned_task:
                raise Conflict("The index is in use.")
            return accept(domain)

        patch.setattr(upgrades, "accept_upgrade", refuse_day)
        upgrades.settle_old_upgrades()
    assert set(open_store().manifest().replaced) == {learned_task}, "the other domain does not wait"
    upgrades.settle_old_upgrades()
    assert not open_store().manifest().replaced

    learn(post_upgrade(learned_task))
    delete_task(learned_task)
    manifest = open_store().manifest()
    assert (manifest.replaced, manifest.live_count(learned_task)) == ({}, 0)
    with pytest.raises(Conflict, match="was deleted"):
        post_upgrade(learned_task)


def test_upgrades_that_change_nothing_or_do_not_fit_are_refused(learned_task: str, post_videos: Post) -> None:
    task = commands.get_task(learned_task)
    with pytest.raises(Conflict, match="already"):
        post_upgrade(learned_task, backbone=task.backbone)
    with pytest.raises(InvalidInput, match="backbone"):
        post_upgrade(learned_task, backbone="lite3")
    learn(post_videos("night", videos=4))
    serve_release("day")
    with pytest.raises(Conflict, match="An earlier release is served"):
        post_upgrade(learned_task)
    serve_release("newest")
    upgrade = learn(post_upgrade(learned_task))
    with pytest.raises(Conflict, match="day was upgraded after it"):
        serve_release("night")
    assert upgrade.method == task.method


def test_videos_appended_or_deleted_meanwhile_are_in_the_upgraded_domain(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade, append = post_upgrade(learned_task), post_append(learned_task, {"red": "red"})
    ran: list[TaskDetails] = []
    with monkeypatch.context() as patch:

        def change() -> None:
            if not ran:
                delete_videos(["day-5"])
                ran.append(run_append(append))

        call_before(patch, learning_job, "evaluate_task", change)
        assert run_job(upgrade).state == "evaluating", "it starts again with the appended video"
        assert ran[0].state == "ready"
        learn(upgrade)
    assert catalog_vector_ids(learned_task).keys() == {*(f"day-{n}" for n in range(5)), "new-red"}
    require_same_videos(learned_task)
    run_append(post_append(learned_task, {"blue": "blue"}))
    with pytest.raises(Conflict, match="1 videos were appended"):
        upgrades.undo_upgrade(learned_task)


def test_append_that_was_embedded_before_the_upgrade_is_embedded_again(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade, append = post_upgrade(learned_task), post_append(learned_task, {"red": "red"}, ["the {} video"])
    with monkeypatch.context() as patch:
        call_before(patch, append_job, "_measure", lambda: learn(upgrade))
        assert run_append(append).state == "indexing"
    assert run_append(append).state == "ready"
    require_same_videos(learned_task)
    shard = open_store().manifest().shards[learned_task]
    assert {entry.release for entry in open_store().manifest().segments(learned_task)} == {shard.release}


POINTS = {
    "claimed": die_before(learning_job, "load_task"),
    "trained": die_after(learning_job, "train_task"),
    "indexed": die_after(learning_job, "index_task"),
    "evaluated": die_after(learning_job, "evaluate_task"),
    "manifest replaced": die_after(ShardStore, "publish"),
    "in catalog rows": die_after(Publication, "complete"),
    "committed": die_before(learning_job, "clean_up"),
}


@pytest.mark.slow
def test_killed_upgrade_continues_and_its_appends_wait_for_the_catalog(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_machine, "MAX_ATTEMPTS", 20)
    monkeypatch.setattr(state_machine, "MAX_LOST_TRAININGS", 20)
    before = stored_facts(learned_task)
    upgrade, append = post_upgrade(learned_task), post_append(learned_task, {"red": "red"})
    for point, patch in POINTS.items():
        assert run_in_process(learning_job.run_learning_job, upgrade, patch) == -signal.SIGKILL, point
        published = point in ("manifest replaced", "in catalog rows", "committed")
        assert (open_store().manifest().shards[learned_task] != before[1][0]) == published, point
        if not published:
            assert stored_facts(learned_task) == before
        if point == "manifest replaced":
            waiting = run_append(append)
            assert (waiting.state, waiting.progress.stage) == ("probing", "waiting for the domain's upgrade")
            with pytest.raises(Conflict, match="already published"):
                commands.cancel_task(upgrade)
        if point != "committed":
            expire_leases(upgrade)
    assert commands.get_task(upgrade).state == "ready"
    assert outcome_of(upgrade).r1_after is not None
    require_same_videos(learned_task)
    with session_scope(write=True) as session:
        session.get_one(Task, append).lease_expires_at = None
    assert run_append(append).state == "ready"
    require_same_videos(learned_task)


def test_killed_undo_is_completed_by_repetition_or_maintenance(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored_facts(learned_task)
    for complete in (upgrades.undo_upgrade, lambda _: upgrades.settle_old_upgrades()):
        learn(post_upgrade(learned_task))
        with monkeypatch.context() as patch:
            patch.setattr(upgrades, "shard_columns", interrupt)
            with pytest.raises(KeyboardInterrupt):
                upgrades.undo_upgrade(learned_task)
        for refused in (post_upgrade, upgrades.accept_upgrade):
            with pytest.raises(Conflict, match="undo it again"):
                refused(learned_task)
        append = post_append(learned_task, {"red": "red"})
        waiting = run_append(append)
        assert (waiting.state, waiting.progress.stage) == ("probing", "waiting for the domain's upgrade")
        complete(learned_task)
        assert stored_facts(learned_task) == before
        require_same_videos(learned_task)
        commands.cancel_task(append)
        delete_task(append)


def test_upgrade_without_sources_is_refused_with_the_videos_and_can_be_retried(learned_task: str) -> None:
    before = stored_facts(learned_task)
    folder = settings().media_root / "day"
    folder.rename(folder.with_name("gone"))
    upgrade = post_upgrade(learned_task)
    view = run_job(upgrade)
    assert view.state == "failed"
    assert "; the same with 1 other video" in (view.error or "")
    assert [f"'day-{n}'" in (view.error or "") for n in range(6)] == [True] * 5 + [False]
    assert view.error_hint == "Put the video back where it was, then retry the task."
    assert stored_facts(learned_task) == before
    folder.with_name("gone").rename(folder)
    assert commands.retry_task(upgrade).state == "queued"
    learn(upgrade)
    require_same_videos(learned_task)


def test_cancelled_upgrade_and_one_of_a_deleted_domain_leave_no_trace(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored_facts(learned_task)
    upgrade = post_upgrade(learned_task)
    with monkeypatch.context() as patch:
        call_before(patch, learning_job, "evaluate_task", lambda: commands.cancel_task(upgrade))
        assert run_job(upgrade).state == "cancelled"
    assert stored_facts(learned_task) == before
    assert not open_store().manifest().replaced
    delete_task(upgrade)
    assert [task.id for task in commands.list_tasks()] == [learned_task]
    assert not (settings().checkpoints_dir / upgrade).exists()
    upgrade = post_upgrade(learned_task)
    call_before(monkeypatch, learning_job, "evaluate_task", lambda: delete_task(learned_task))
    view = run_job(upgrade)
    assert (view.state, view.error) == ("failed", f"The domain 'day (deleted {learned_task})' was deleted.")


def test_other_workers_embed_an_upgrade_with_its_encoder(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = post_upgrade(learned_task)
    helped = help_once(monkeypatch, upgrade)
    learn(upgrade)
    assert helped == [3, 0]
    require_same_videos(learned_task)
    with session_scope() as session:
        assert session.scalars(select(Video.task_id).distinct()).all() == [learned_task]


@pytest.mark.slow
def test_command_shows_recall_and_undoes_accepts_and_upgrades_all(
    learned_task: str, post_videos: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = post_videos("night", videos=4)
    learn(night)
    monkeypatch.setattr(task_commands, "follow", lambda client, ids: [run_job(task) for task in ids])
    monkeypatch.setattr(ServiceClient, "lacks_workers", lambda client: False)
    outcome = run("upgrade", "day", "--backbone", "lite2")
    assert outcome.exit_code == 0, outcome.output
    assert "to lite2, method ffa_tame" in outcome.output
    assert "Recall@1 within the domain: 50.0% before, " in outcome.output
    assert "cinestrata upgrade day --undo" in outcome.output
    undone = run("upgrade", "day", "--undo")
    assert (undone.exit_code, undone.output.split(", ")[1:]) == (0, ["method ffa_tame\n"])
    assert run("upgrade", "day", "--undo").exit_code == 1
    assert run("upgrade", "day", "--backbone", "lite2", "--no-wait").exit_code == 0
    (waiting,) = [task.id for task in commands.list_tasks() if task.state == "queued"]
    assert "is not finished" in run("upgrade", "--all", "--backbone", "lite2", "--no-wait").output
    commands.cancel_task(waiting)
    for task in commands.list_tasks():
        if task.state == "queued":
            learn(task.id)
    (settings().media_root / "day").rename(settings().media_root / "gone")
    assert run("upgrade", "--all", "--backbone", "lite2").exit_code == 1
    assert commands.get_task(night).backbone == "lite2"
    assert commands.get_task(learned_task).backbone != "lite2"
    assert run("upgrade", "night", "--accept").output == "night: backbone lite2, method ffa_tame\n"
    assert not open_store().manifest().replaced


@pytest.mark.slow
def test_upgrade_that_failed_after_it_was_published_is_completed_by_its_retry(
    learned_task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = post_upgrade(learned_task, method="zero_shot")
    commands.cancel_task(never)
    learn(post_upgrade(learned_task))
    first = stored_facts(learned_task)
    second = post_upgrade(learned_task, backbone="tiny", method="zero_shot")
    assert run_in_process(learning_job.run_learning_job, second, POINTS["manifest replaced"]) < 0
    expire_leases(second)
    with monkeypatch.context() as patch:
        patch.setattr(learning_job, "task_backbone", None)
        assert run_job(second).state == "failed"
    published = open_store().manifest()
    for refused in (upgrades.undo_upgrade, upgrades.accept_upgrade, post_upgrade):
        with pytest.raises(Conflict, match=f"The upgrade {second} of 'day' is published, but not complete"):
            refused(learned_task)
    with pytest.raises(Conflict, match=f"The upgrade {second}"):
        commands.retry_task(never)
    with pytest.raises(Conflict, match="without method"):
        commands.retry_task(second, RetrySpec(method="zero_shot"))
    upgrades.settle_old_upgrades()
    assert open_store().manifest() == published
    commands.retry_task(second)
    assert learn(second).state == "ready"
    assert commands.get_task(learned_task).method == "zero_shot"
    require_same_videos(learned_task)
    upgrades.undo_upgrade(learned_task)
    assert stored_facts(learned_task) == first
    with pytest.raises(Conflict, match="has backbone 'lite2' and method 'ffa_tame' already"):
        commands.retry_task(never, RetrySpec(method="ffa_tame"))
    assert commands.retry_task(never).method == "zero_shot"
    assert learn(never).state == "ready"
    assert commands.get_task(learned_task).method == "zero_shot"
