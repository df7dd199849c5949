"""Entries of the audit log: recorded in the transaction of their change, filtered, paged and exported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import VideoPatch
from service.access.audit_log import (
    Actor,
    acting_as,
    command_line_actor,
    current_actor,
    list_entries,
    record_change,
    record_event,
)
from service.catalog.database import session_scope
from service.core.errors import InvalidInput
from service.core.list_parameters import AuditFilters, VideoFilters
from service.core.settings import Settings
from service.library import deletion, library_listing, video_changes
from service.tasks import commands
from tests.audited_changes import audit_entries

ADA = Actor("user", "ada", "10.0.0.7", "req-1")


def _actions(**conditions: object) -> list[str]:
    return [entry.action for entry in audit_entries(**conditions)]  # type: ignore[arg-type]


def test_changes_of_tasks_and_videos_are_recorded_with_their_actor(
    catalog: Settings, post: Callable[..., TaskDetails]
) -> None:
    with acting_as(ADA):
        task = post("birds", 2)
        video, other = (entry.id for entry in library_listing.list_videos(VideoFilters(task=task.id)).videos)
        video_changes.edit_video(video, VideoPatch(captions=["a heron"]))
        video_changes.edit_video(video, VideoPatch(captions=["a heron"]))  # no difference
        deletion.delete_videos([other, "missing"])
        commands.cancel_task(task.id)
        commands.cancel_task(task.id)  # cancelled already
        commands.retry_task(task.id)
        commands.cancel_task(task.id)
        deletion.delete_task(task.id)
    entries = audit_entries()
    actions = "task.create video.edit video.delete task.cancel task.retry task.cancel task.delete"
    assert " ".join(entry.action for entry in entries) == actions
    assert {(e.actor, e.actor_kind, e.address, e.request_id) for e in entries} == {
        ("ada", "user", "10.0.0.7", "req-1")
    }
    facts = {"name": "birds", "method": task.method, "backbone": task.backbone, "videos": 2}
    assert entries[0].details == facts
    assert (entries[1].target, entries[1].details) == (video, {"task": task.id, "fields": ["captions"]})
    assert entries[2].details == {"videos": [other], "number": 1}
    assert all(datetime.now(UTC) - entry.at < timedelta(minutes=5) for entry in entries)


def test_change_that_is_rolled_back_leaves_no_entry(catalog: Settings) -> None:
    def fail() -> None:
        with session_scope(write=True) as session:
            record_change(session, "task.create", "tsk_1")
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert _actions() == []


def test_conditions_select_entries(sqlite_catalog: Settings) -> None:
    record_event("task.cancel", "tsk_1", actor=ADA)
    record_event("taskless", "x", {"name": "Küche 100%"}, actor=Actor("key", "nightly"))
    record_event("video.edit", "v1", {"fields": ["captions"]}, actor=Actor("worker", "box", None))
    assert _actions(actor="ada") == ["task.cancel"]
    assert _actions(kind=["key", "worker"]) == ["taskless", "video.edit"]
    assert _actions(action=["task"]) == ["task.cancel"]
    assert _actions(action=["task.cancel", "video"]) == ["task.cancel", "video.edit"]
    assert _actions(action=["%"]) == []
    assert _actions(target="v1") == ["video.edit"]
    assert _actions(address="10.0.0.7") == _actions(request_id="req-1") == ["task.cancel"]
    assert _actions(text="küche 100%") == ["taskless"]
    now = datetime.now(UTC)
    assert len(_actions(after=now - timedelta(hours=1), before=now + timedelta(hours=1))) == 3
    assert _actions(after=now + timedelta(hours=1)) == _actions(before=datetime(1, 1, 1)) == []
    with pytest.raises(InvalidInput, match="after"):
        _actions(after=now, before=now)


def test_pages_list_each_entry_once(sqlite_catalog: Settings) -> None:
    for number in range(7):
        record_event("task.cancel", str(number))
    first = list_entries(AuditFilters(limit=4))
    record_event("task.cancel", "later")
    second = list_entries(AuditFilters(limit=4, cursor=first.next_cursor))
    assert [entry.target for entry in (*first.entries, *second.entries)] == list("6543210")
    assert second.next_cursor is None
    assert list_entries(AuditFilters(sort="time")).entries[0].target == "0"


def test_hostile_texts_are_stored_without_errors(catalog: Settings) -> None:
    deep: dict[str, object] = {}
    for _ in range(50):
        deep = {"a": deep}
    actor = Actor("anonymous", "n\0me\ud800" + "x" * 9999, "::1%eth0" * 99, "\0" * 500)
    record_event("session.fail", "t\0" * 999, {"name\ud800": "\0" + "y" * 99_999, "deep": deep}, actor=actor)
    (entry,) = audit_entries()
    assert entry.actor.startswith("n\N{REPLACEMENT CHARACTER}me\N{REPLACEMENT CHARACTER}x")
    assert len(entry.model_dump_json()) < 10_000


def test_context_decides_the_actor_of_a_thread() -> None:
    process = current_actor()  # a command of an earlier test may have set it
    seen: list[Actor] = []
    with acting_as(ADA):
        with acting_as(Actor("key", "inner")):
            assert current_actor().name == "inner"
        assert current_actor() == ADA
        thread = threading.Thread(target=lambda: seen.append(current_actor()))
        thread.start()
        thread.join()
    assert seen == [process] == [current_actor()]
    assert process not in (ADA, Actor("key", "inner"))
    assert command_line_actor().kind == "cli"
    assert command_line_actor().name
