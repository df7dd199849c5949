"""Upgrade the tables of version 1.0.0, and make SQLite's tables STRICT.

* Each task names its backbone; that of a learned domain is the one of its shard's release. A task may upgrade a domain.
* Timed texts have a source, and videos' files are read for them.
* The first sync after 1.0 reads all files, and finds the video of each by its content.
* Leases are in one table. Those held during the upgrade end: their work starts again, as after the death of its worker.
* Until now, SQLite stored any value in any column. A row with a value of another kind is copied to ``damaged_rows`` as
  it was; in its table, NULL or an empty value replaces the damaged ones.
* Alerts that ended, and what they used, are dropped.
"""

from __future__ import annotations

import json
import re

import sqlalchemy as sa
import structlog
from alembic import op

revision = "catalog_9"  # 2 to 8 were never released
down_revision = "catalog_1"

_GROWING_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = {
    "audit_log": {"details": "object"},
    "calibrations": {"model": "object"},
    "deliveries": {"payload": "object"},
    "events": {"data": "object"},
    "idempotency_keys": {"response": "object"},
    "maintenance_jobs": {"result": "object"},
    "passages": {"cues": "array"},
    "readings": {"corrected": "array"},
    "releases": {"metrics": "object"},
    "synced_files": {"captions": "array"},
    "syncs": {"counts": "object"},
    "tasks": dict.fromkeys(("settings", "progress", "remedy", "counts", "undo"), "object"),
    "videos": {"metadata": "object", "captions": "array"},
    "webhooks": {"events": "array"},
    "worker_reports": {"gpus": "array"},
}
_STORED = {"TEXT": "'text'", "INTEGER": "'integer'", "REAL": "'real', 'integer'", "BLOB": "'blob'"}
_MAX_NAMED = 20  # rows in a log line

log = structlog.get_logger(__name__)


def upgrade() -> None:
    """Change the tables."""
    op.add_column("videos", sa.Column("replaced_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("passages", sa.Column("source", sa.String(16), server_default="subtitles", nullable=False))
    op.add_column("tasks", sa.Column("backbone", sa.String(255)))
    op.execute(
        "UPDATE tasks SET backbone = (SELECT releases.backbone FROM shards JOIN releases "
        "ON releases.id = shards.release_id WHERE shards.task_id = tasks.id)"
    )
    for name in ("upgrades", "partial"):
        op.add_column("tasks", sa.Column(name, sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("tasks", sa.Column("upgrade_order", sa.Integer()))
    op.add_column("tasks", sa.Column("undo", sa.JSON()))
    op.add_column("tasks", sa.Column("read", sa.String(64)))
    op.create_table(
        "readings",
        sa.Column("video_vector_id", _GROWING_ID, autoincrement=False, nullable=False),
        sa.Column("source", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("model", sa.String(255)),
        sa.Column("note", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("corrected", sa.JSON(), nullable=False),
        sa.Column("lease_owner", sa.String(255)),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True)),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'done', 'failed', 'cancelled')", name=op.f("ck_readings_state")
        ),
        sa.ForeignKeyConstraint(
            ["video_vector_id"],
            ["videos.vector_id"],
            name=op.f("fk_readings_video_vector_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("video_vector_id", "source", name=op.f("pk_readings")),
    )
    is_pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_readings_attempts_video_vector_id",
        "readings",
        ["attempts", "video_vector_id"],
        sqlite_where=is_pending,
        postgresql_where=is_pending,
    )
    op.create_table(
        "synced_files",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("task_id", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("modified", sa.BigInteger(), nullable=True),
        sa.Column("changed", sa.BigInteger(), nullable=True),
        sa.Column("file_id", sa.String(length=64), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("video_id", sa.String(length=128), nullable=True),
        sa.Column("captions", sa.JSON(), nullable=True),
        sa.Column("transcript", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_synced_files_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_synced_files")),
        sa.UniqueConstraint("task_id", "key", name=op.f("uq_synced_files_task_id_key")),
    )
    op.create_index("ix_synced_files_sha256", "synced_files", ["sha256"], unique=False)
    op.create_table(
        "leases",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("id", sa.String(length=384), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", name=op.f("pk_leases")),
    )
    op.execute("UPDATE syncs SET next_run_at = started_at WHERE lease_expires_at IS NOT NULL")
    op.drop_column("syncs", "lease_expires_at")
    op.drop_column("syncs", "fencing_token")
    op.drop_column("webhooks", "lease_expires_at")
    op.drop_column("idempotency_keys", "locked_until")
    op.drop_column("maintenance_jobs", "lease_expires_at")
    op.execute("ALTER TABLE maintenance_jobs RENAME COLUMN fencing_token TO attempts")
    op.create_table(
        "damaged_rows",
        sa.Column("id", _GROWING_ID, autoincrement=True, nullable=False),
        sa.Column("table", sa.String(length=64), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_damaged_rows")),
        sqlite_autoincrement=True,
    )
    op.execute(
        "DELETE FROM alerts WHERE open_key IS NULL OR kind NOT IN ('forgetting_local', 'forgetting_global')"
    )
    op.drop_index("ix_alerts_cleared_at", table_name="alerts")
    op.drop_column("alerts", "cleared_at")
    op.drop_column("alerts", "dismissed_at")
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        for table in sa.inspect(connection).get_table_names():
            if table != "alembic_version":
                _repair(connection, table)
                _make_strict(connection, table)


def _storage_class(declared: str) -> str:
    for pattern, name in (
        ("VARCHAR|DATETIME|JSON", "TEXT"),
        ("BIGINT|BOOLEAN", "INTEGER"),
        ("FLOAT", "REAL"),
    ):
        declared = re.sub(rf"\b({pattern})\b(\(\d+\))?", name, declared)
    return declared


def _repair(connection: sa.Connection, table: str) -> None:
    kinds, damaged, values, keys = _JSON.get(table, {}), [], [], []
    for _, name, declared, is_required, _, is_key in connection.exec_driver_sql(
        f"PRAGMA table_info({table})"
    ):
        column, stored = f'"{name}"', _storage_class(declared)
        condition = f"typeof({column}) NOT IN ({_STORED[stored]})"
        neutral = f"CAST({column} AS {stored})"
        if kind := kinds.get(name):
            condition += f" OR NOT json_valid({column}) OR json_type({column}) <> '{kind}'"
            neutral = "'{}'" if kind == "object" else "'[]'"
            if name == "progress":
                neutral = "json_object('stage', state)"
        elif declared == "DATETIME":
            condition += f" OR datetime({column}) IS NULL"
            neutral = "'1970-01-01 00:00:00.000000'"
        if not is_required and not is_key:
            neutral = "NULL"
        condition = f"({column} IS NOT NULL AND ({condition}))"
        damaged.append(condition)
        values.append(f"{column} = CASE WHEN {condition} THEN {neutral} ELSE {column} END")
        if is_key:
            keys.append(name)
    where = " OR ".join(damaged)
    rows = connection.exec_driver_sql(f"SELECT * FROM {table} WHERE {where}").mappings().all()  # noqa: S608
    if not rows:
        return
    copies = [{"name": table, "content": json.dumps(dict(row), default=repr)} for row in rows]
    connection.execute(
        sa.text('INSERT INTO damaged_rows ("table", content) VALUES (:name, :content)'), copies
    )
    connection.exec_driver_sql(f"UPDATE OR REPLACE {table} SET {', '.join(values)} WHERE {where}")  # noqa: S608
    log.warning(
        "catalog_rows_damaged",
        table=table,
        rows=len(rows),
        first=[" ".join(str(row[key]) for key in keys) for row in rows[:_MAX_NAMED]],
        hint="The table damaged_rows has these rows as they were.",
    )


def _make_strict(connection: sa.Connection, table: str) -> None:
    """Write a table again, with the checks of its JSON columns."""
    master = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND type = ? AND sql IS NOT NULL"
    (created,) = connection.exec_driver_sql(master, (table, "table")).scalars()
    indexes = connection.exec_driver_sql(master, (table, "index")).scalars().all()
    columns = created[created.index("(") : created.rindex(")")]
    checks = "".join(
        f", CONSTRAINT ck_{table}_{name} CHECK ({name} IS NULL OR json_valid({name}) AND json_type({name}) = '{kind}')"
        for name, kind in _JSON.get(table, {}).items()
    )
    connection.exec_driver_sql(f"CREATE TABLE strict_table {_storage_class(columns)}{checks}) STRICT")
    connection.exec_driver_sql(f"INSERT INTO strict_table SELECT * FROM {table}")  # noqa: S608
    connection.exec_driver_sql(f"DROP TABLE {table}")
    connection.exec_driver_sql(f"ALTER TABLE strict_table RENAME TO {table}")
    for index in indexes:
        connection.exec_driver_sql(index)
