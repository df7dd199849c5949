"""Catalog rows with JSON that no version writes: lists name them and continue with the other rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Column, text

from cli.commands.library_checks import check_values
from service.catalog.column_types import StoredChoice, StoredJson
from service.catalog.database import now, session_scope
from service.catalog.migrations import CATALOG_SCHEMA
from service.catalog.operation_tables import (
    Alert,
    AuditEntry,
    Delivery,
    MaintenanceJob,
    Webhook,
    WorkerReport,
)
from service.catalog.tables import (
    Calibration,
    Chunk,
    Event,
    Feedback,
    FileRemoval,
    IdempotencyKey,
    LeaseRow,
    Moment,
    Passage,
    Sync,
    SyncedFile,
)
from service.library.alerts import evaluate_alerts
from service.operations import maintenance_jobs
from service.syncs import registered_syncs
from service.tasks import lifecycle
from tests.catalog_rows import accepted_videos

_LISTS = (
    "/tasks",
    "/videos",
    "/library",
    "/operations",
    "/releases",
    "/shards",
    "/forgetting",
    "/syncs",
    "/webhooks",
    "/audit",
    "/metrics",
    "/webhooks/whk_1/deliveries",
    "/feedback",
    "/keys",
    "/users",
    "/sessions",
)


@contextmanager
def _stored(table: str, column: str, value: str | bytes, row: str = "1 = 1") -> Iterator[None]:
    """Store a value in rows as a broken tool would."""
    with session_scope(write=True) as session:
        session.execute(text("PRAGMA ignore_check_constraints = ON"))
        before = session.execute(text(f"SELECT rowid, {column} FROM {table} WHERE {row}")).all()
        session.execute(text(f"UPDATE {table} SET {column} = :value WHERE {row}"), {"value": value})
    try:
        yield
    finally:
        with session_scope(write=True) as session:
            for rowid, old in before:
                session.execute(
                    text(f"UPDATE {table} SET {column} = :value WHERE rowid = {rowid}"), {"value": old}
                )


@pytest.fixture(scope="module")
def filled(library: list[str]) -> list[str]:
    """The library, with a row in the tables of the operation."""
    with session_scope(write=True) as session:
        at = now(session)
        session.add(
            Webhook(
                id="whk_1",
                url="https://a.test",
                secret="s",
                events=["task.ready"],
                enabled=True,
                created_at=at,
            )
        )
        session.flush()
        session.add_all(
            [
                Delivery(
                    webhook_id="whk_1",
                    message_id="m",
                    event="task.ready",
                    payload={"type": "x"},
                    created_at=at,
                ),
                Sync(
                    id="syn_1",
                    name="birds",
                    source="/videos",
                    every_seconds=60,
                    vanished="keep",
                    captions_from_names=False,
                    created_at=at,
                    next_run_at=at,
                    counts={"new": 1},
                ),
                SyncedFile(task_id=library[0], key="k", source="/videos", path="a.mp4", captions=["a bird"]),
                MaintenanceJob(kind="compact", state="done", created_at=at, result={"domains": 1}),
                WorkerReport(
                    name="host:1", seen_at=at, gpus=[{"device": 0, "used_bytes": 1, "total_bytes": 2}]
                ),
                AuditEntry(
                    at=at, actor="a", actor_kind="key", action="task.retry", target="t", details={"a": 1}
                ),
                IdempotencyKey(caller="c", key="k", body_hash="h", response={}, created_at=at),
                LeaseRow(kind="request", id="c k", token=1, until=at),
                Calibration(task_id=library[0], release_id="r", generation=1, model={}),
                Passage(
                    video_vector_id=accepted_videos(library[0])[0].vector_id,
                    number=0,
                    cues=[[0.0, 1.0, "a red car"]],
                ),
                Event(task_id=library[0], at=at, kind="progress", data={"stage": "training"}),
                Alert(kind="forgetting_global", open_key="k", value=1.0, threshold=0.5, raised_at=at),
                Chunk(task_id=library[0], stage="probing", number=0, first_id=1, last_id=2, videos=2),
                FileRemoval(video_id="gone", uri="gone.mp4"),
                Feedback(
                    video_vector_id=accepted_videos(library[0])[0].vector_id,
                    text="a red car",
                    words_key="k",
                    verdict="right",
                    caller="c",
                    caller_kind="key",
                    created_at=at,
                ),
                Moment(
                    vector_id=2**60,
                    video_vector_id=accepted_videos(library[0])[0].vector_id,
                    start_seconds=0.0,
                    end_seconds=1.0,
                ),
            ]
        )
    return library


_COLUMNS = {
    table.name: [column for column in table.columns if not (column.primary_key or column.foreign_keys)]
    for table in CATALOG_SCHEMA.sorted_tables
}


def _no_value_of(column: Column[Any]) -> str | bytes:
    """A value that SQLite stores in a column of another type, or a text that is no JSON."""
    if isinstance(column.type, StoredJson):
        return "{broken"
    is_text = issubclass(column.type.python_type, str) and not isinstance(column.type, StoredChoice)
    return b"\xff" if is_text or column.type.python_type is bytes else "yesterday"


_DAMAGED_ROWS = [
    (
        table,
        {
            column.name: _no_value_of(column)
            for column in columns
            if column.type.python_type is not bytes and (table, column.name) != ("videos", "id")
        },
    )
    for table, columns in _COLUMNS.items()
    if table not in ("api_keys", "browser_sessions", "users")  # a library without them lets everybody in
]


@pytest.mark.parametrize(("table", "values"), _DAMAGED_ROWS)
def test_damaged_values_stop_no_list_and_no_maintenance(
    client: TestClient, filled: list[str], table: str, values: dict[str, str | bytes]
) -> None:
    _check_damage(client, filled[0], [(table, column, value) for column, value in values.items()])


def _check_damage(client: TestClient, task: str, damages: list[tuple[str, str, str | bytes]]) -> None:
    """Check lists and maintenance while columns of the first row of each table have a value."""
    pages = (f"/tasks/{task}", f"/videos/{accepted_videos(task)[0].id}", "/search?q=red&k=50")
    with ExitStack() as stack:
        for table, column, value in damages:
            stack.enter_context(_stored(table, column, value, f"rowid = (SELECT min(rowid) FROM {table})"))
        for path in (*_LISTS, *pages):
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer.text)
        lifecycle.reconcile()
        registered_syncs.send_due_syncs()
        maintenance_jobs.send_due_jobs()
        evaluate_alerts()
        faults = check_values()
    for table, column, _ in damages:
        assert [fault for fault in faults if fault.startswith(f"{table}.{column} of row")], column


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *product(["settings", "progress", "counts", "remedy"], ["[1]", "3", "{broken"]),
        # Settings may have any fields.
        *product(["progress", "counts", "remedy"], ['{"stage": 1, "times": 2, "videos": []}']),
        *product(["created_at", "started_at", "position", "attempts"], ["yesterday", b"\xff"]),
        ("state", "sleeping"),
        ("method", b"\xff"),
    ],
)
def test_task_with_a_damaged_column_is_named_beside_the_others(
    client: TestClient, library: list[str], column: str, value: str | bytes
) -> None:
    before = {task["id"]: task for task in client.get("/tasks").json()}
    with _stored("tasks", column, value, f"id = '{library[0]}'"):
        tasks = {task["id"]: task for task in client.get("/tasks").json()}
        metrics = client.get("/metrics").text
    damaged = tasks.pop(library[0])
    intact = before.pop(library[0])
    assert tasks == before
    assert f"damaged: {column}." in damaged["error"]
    assert "cinestrata doctor" in damaged["error_hint"]
    assert damaged["counts"] == intact["counts"]
    assert f'cinestrata_catalog_damaged_values_total{{column="tasks.{column}"}}' in metrics
    assert client.get("/tasks").json()[0]["error"] is None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("captions", "{}"),
        ("captions", "[1]"),
        ("metadata", "[]"),
        ("metadata", "{broken"),
        ("added_at", "yesterday"),
        ("duration", "long"),
        ("split", "third"),
        ("uri", b"\xff"),
    ],
)
def test_video_with_a_damaged_column_is_named_and_found(
    client: TestClient, library: list[str], column: str, value: str | bytes
) -> None:
    video = accepted_videos(library[0])[0]
    with _stored("videos", column, value, f"id = '{video.id}'"):
        answer = client.get(f"/videos/{video.id}").json()
        assert f"damaged: {column}." in answer["reason"]
        if column in ("captions", "metadata"):
            assert answer[column] in ([], {})
        found = client.get("/search", params={"q": video.captions[0], "k": 50}).json()
        assert video.id in [hit["video_id"] for hit in found["results"]]
        listed = client.get("/videos", params={"task": library[0]}).json()["videos"]
        assert [row["id"] for row in listed if row["reason"]] == [video.id]
    assert client.get(f"/videos/{video.id}").json()["reason"] is None


def test_text_of_another_encoding_does_not_hide_the_other_videos(
    client: TestClient, library: list[str]
) -> None:
    intact, video = accepted_videos(library[0])[:2]
    with _stored("videos", "reason", b"caf\xe9", f"id = '{video.id}'"):
        with session_scope(write=True) as session:
            session.execute(text(f"UPDATE videos SET reason = CAST(reason AS TEXT) WHERE id = '{video.id}'"))
        listed = {
            row["id"]: row for row in client.get("/videos", params={"task": library[0]}).json()["videos"]
        }
    assert listed[video.id]["reason"] == "caf�"
    assert listed[intact.id]["reason"] is None
