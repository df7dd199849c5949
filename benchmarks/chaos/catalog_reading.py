"""Rows of a catalog in SQLite or PostgreSQL, read by the database drivers and not by modules of the product."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class CatalogReader:
    """Rows of the tables of a catalog.

    Args:
        connection: Connection of :mod:`sqlite3` or :mod:`psycopg`.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query, by column; columns of JSON are decoded."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(query)
            names = [column[0] for column in cursor.description]
            return [_decoded(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
        finally:
            cursor.close()
            self._connection.rollback()  # the next query sees later commits

    def tasks(self) -> list[dict[str, Any]]:
        """Return the tasks by position."""
        return self.rows("SELECT * FROM tasks ORDER BY position")

    def videos(self) -> list[dict[str, Any]]:
        """Return the videos by vector ID."""
        return self.rows("SELECT vector_id, id, task_id, uri, status, reason FROM videos ORDER BY vector_id")

    def epochs(self) -> dict[str, list[int]]:
        """Return the task ID → epochs of its training reports, in the order in which they were stored."""
        found: dict[str, list[int]] = {}
        for row in self.rows("SELECT task_id, data FROM events WHERE kind = 'progress' ORDER BY id"):
            data: Mapping[str, Any] = row["data"]
            if data.get("stage") == "training" and data.get("epoch"):
                found.setdefault(row["task_id"], []).append(int(data["epoch"]))
        return found

    def leases(self) -> list[str]:
        """Return the leases of finished tasks, and chunks of finished tasks: none may remain."""
        final = "('ready', 'failed', 'cancelled')"
        leased = self.rows(f"SELECT id FROM tasks WHERE state IN {final} AND lease_owner IS NOT NULL")
        chunks = self.rows(
            "SELECT chunks.task_id AS id FROM chunks JOIN tasks ON tasks.id = chunks.task_id "
            f"WHERE tasks.state IN {final} AND chunks.lease_owner IS NOT NULL"
        )
        return [row["id"] for row in (*leased, *chunks)]


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    """Decode the columns that SQLite stores as text."""
    for name in ("data", "counts", "progress"):
        if isinstance(row.get(name), str):
            row[name] = json.loads(row[name])
    return row
