"""Slugs of domains, and keys that decide whether two names are equal."""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa
from alembic import op

from service.core.domain_names import name_key, unused_slug

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and fill them. Domains that exist keep their names, also where names differ only in case."""
    op.add_column("tasks", sa.Column("slug", sa.String(length=80), nullable=True))
    op.add_column("tasks", sa.Column("name_key", sa.String(length=240), server_default="", nullable=False))
    tasks = sa.table(
        "tasks",
        *(
            sa.column(name)
            for name in ("id", "position", "name", "name_key", "slug", "target_id", "deleted_at")
        ),
    )
    connection = op.get_bind()
    rows = connection.execute(sa.select(tasks).order_by(tasks.c.position)).all()
    keys = {row.id: name_key(row.name) for row in rows}
    names = Counter([*keys, *keys.values()])
    slugs: set[str] = set()
    for row in rows:
        slug = None
        if row.target_id is None and row.deleted_at is None:
            names.subtract([row.id, keys[row.id]])
            slug = unused_slug(row.name, lambda text: text in slugs or names[text] > 0)
            names.update([row.id, keys[row.id]])
            slugs.add(slug)
        connection.execute(
            sa.update(tasks).where(tasks.c.id == row.id).values(name_key=keys[row.id], slug=slug)
        )
    op.create_index(op.f("ix_tasks_name_key"), "tasks", ["name_key"], unique=False)
    op.create_index(op.f("ix_tasks_slug"), "tasks", ["slug"], unique=True)


def downgrade() -> None:
    """Drop them."""
    op.drop_index(op.f("ix_tasks_slug"), table_name="tasks")
    op.drop_index(op.f("ix_tasks_name_key"), table_name="tasks")
    op.drop_column("tasks", "name_key")
    op.drop_column("tasks", "slug")
