"""Give each upgrade a row of the recall matrix, and keep what undoing it restores in a column."""

from __future__ import annotations

from alembic import op

revision = "catalog_8"
down_revision = "catalog_7"

_JSON = {
    "postgresql": "JSON",
    "sqlite": "TEXT CONSTRAINT ck_tasks_undo CHECK "
    "(undo IS NULL OR json_valid(undo) AND json_type(undo) = 'object')",
}


def upgrade() -> None:
    """Add the columns."""
    op.execute(f"ALTER TABLE tasks ADD COLUMN undo {_JSON[op.get_bind().dialect.name]}")
    op.execute("ALTER TABLE tasks ADD COLUMN upgrade_order INTEGER")
    row = "SELECT learned_order FROM releases WHERE releases.task_id = tasks.id"
    op.execute(f"UPDATE tasks SET upgrade_order = ({row}) WHERE upgrades")  # noqa: S608
