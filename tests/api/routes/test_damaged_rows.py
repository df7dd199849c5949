"""Rows of the catalog with JSON that no version writes: lists name them and go on with the other rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from cli.commands.library_checks import check_json_columns
from service.catalog.database import now, session_scope
from service.catalog.migrations import CATALOG_SCHEMA
from service.catalog.operation_tables import AuditEntry, Delivery, MaintenanceJob, Webhook, WorkerReport
from service.catalog.tables import Calibration, Event, IdempotencyKey, Passage, StoredJson, Sync
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
    "/alerts",
    "/metrics",
    "/webhooks/whk_1/deliveries",
)


@contextmanager
def _stored(table: str, column: str, value: str, row: str = "1 = 1") -> Iterator[None]:
    """A value in rows, as a broken tool writes it."""
    with session_scope(write=True) as session:
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
                MaintenanceJob(kind="compact", state="done", created_at=at, result={"domains": 1}),
                WorkerReport(
                    name="host:1", seen_at=at, gpus=[{"device": 0, "used_bytes": 1, "total_bytes": 2}]
                ),
                AuditEntry(
                    at=at, actor="a", actor_kind="key", action="task.retry", target="t", details={"a": 1}
                ),
                IdempotencyKey(
                    caller="c", key="k", body_hash="h", response={}, created_at=at, locked_until=at
                ),
                Calibration(task_id=library[0], release_id="r", generation=1, model={}),
                Passage(
                    video_vector_id=accepted_videos(library[0])[0].vector_id,
                    number=0,
                    cues=[[0.0, 1.0, "a red car"]],
                ),
                Event(task_id=library[0], at=at, kind="progress", data={"stage": "training"}),
            ]
        )
    return library


_COLUMNS = [
    (column.table.name, column.name)
    for table in CATALOG_SCHEMA.sorted_tables
    for column in table.columns
    if isinstance(column.type, StoredJson)
]


@pytest.mark.parametrize("value", ["3", "{broken", "[" * 100_000])
@pytest.mark.parametrize(("table", "column"), _COLUMNS)
def test_damaged_column_stops_no_list_and_no_maintenance(
    client: TestClient, filled: list[str], table: str, column: str, value: str
) -> None:
    task, video = filled[0], accepted_videos(filled[0])[0].id
    pages = (
        *(f"/tasks/{task}{part}" for part in ("", "/queries")),
        f"/videos/{video}",
        "/search?q=red&k=50",
    )
    with _stored(table, column, value):
        for path in (*_LISTS, *pages):
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer.text)
        lifecycle.reconcile()
        registered_syncs.send_due_syncs()
        maintenance_jobs.send_due_jobs()
        evaluate_alerts()
        with session_scope() as session:
            rows = session.scalar(text(f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL"))
        assert (
            len([fault for fault in check_json_columns() if fault.startswith(f"{table}.{column} of row")])
            == rows
        )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *product(["settings", "progress", "counts", "remedy"], ["[1]", "3", "{broken"]),
        # Settings may have any fields.
        *product(["progress", "counts", "remedy"], ['{"stage": 1, "times": 2, "videos": []}']),
    ],
)
def test_task_with_a_damaged_column_is_named_beside_the_others(
    client: TestClient, library: list[str], column: str, value: str
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
    [("captions", "{}"), ("captions", "[1]"), ("metadata", "[]"), ("metadata", "{broken")],
)
def test_video_with_a_damaged_column_is_named_and_found(
    client: TestClient, library: list[str], column: str, value: str
) -> None:
    video = accepted_videos(library[0])[0]
    with _stored("videos", column, value, f"id = '{video.id}'"):
        answer = client.get(f"/videos/{video.id}").json()
        assert f"damaged: {column}." in answer["reason"]
        assert answer[column] in ([], {})
        found = client.get("/search", params={"q": video.captions[0], "k": 50}).json()
        assert video.id in [hit["video_id"] for hit in found["results"]]
        listed = client.get("/videos", params={"task": library[0]}).json()["videos"]
        assert [row["id"] for row in listed if row["reason"]] == [video.id]
    assert client.get(f"/videos/{video.id}").json()["reason"] is None
