"""Read catalog rows from SQLite or PostgreSQL through the database drivers alone, without product code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class CatalogReader:
    """Reads the tables of a catalog.

    Args:
        connection: Connection of :mod:`sqlite3` or :mod:`psycopg`.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Run a query and return its rows by column, with JSON columns decoded."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(query)
            names = [column[0] for column in cursor.description]
            return [_decoded(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]
        finally:
            cursor.close()
            self._connection.rollback()  # so that the next query sees later commits

    def tasks(self) -> list[dict[str, Any]]:
        """List the tasks by position."""
        return self.rows("SELECT * FROM tasks ORDER BY position")

    def videos(self) -> list[dict[str, Any]]:
        """List the videos by vector ID."""
        return self.rows("SELECT vector_id, id, task_id, uri, status, reason FROM videos ORDER BY vector_id")

    def epochs(self) -> dict[str, list[int]]:
        """Map each task ID to the epochs that its training reported, in the order in which they were stored."""
        found: dict[str, list[int]] = {}
        for row in self.rows("SELECT task_id, data FROM events WHERE kind = 'progress' ORDER BY id"):
            data: Mapping[str, Any] = row["data"]
            if data.get("stage") == "training" and data.get("epoch"):
                found.setdefault(row["task_id"], []).append(int(data["epoch"]))
        return found

    def leases(self) -> list[str]:
        """Find leases on finished tasks and on their chunks; none may remain."""
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
