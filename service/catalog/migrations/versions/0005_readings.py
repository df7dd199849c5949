"""Give timed texts a source, and let videos' files be read for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "catalog_7"
down_revision = "catalog_6"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.Text(), "sqlite")


def upgrade() -> None:
    """Add the columns and the table."""
    op.add_column("passages", sa.Column("source", _text(16), server_default="subtitles", nullable=False))
    op.add_column("tasks", sa.Column("read", _text(64)))
    is_json = "corrected IS NULL OR json_valid(corrected) AND json_type(corrected) = 'array'"
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.create_table(
        "readings",
        sa.Column("video_vector_id", _ID, autoincrement=False, nullable=False),
        sa.Column("source", _text(16), nullable=False),
        sa.Column("state", _text(16), nullable=False),
        sa.Column("model", _text(255)),
        sa.Column("note", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("corrected", sa.JSON().with_variant(sa.Text(), "sqlite"), nullable=False),
        sa.Column("lease_owner", _text(255)),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")),
        sa.Column("fencing_token", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'done', 'failed', 'cancelled')", name=op.f("ck_readings_state")
        ),
        *([sa.CheckConstraint(is_json, name=op.f("ck_readings_corrected"))] if is_sqlite else []),
        sa.ForeignKeyConstraint(
            ["video_vector_id"],
            ["videos.vector_id"],
            name=op.f("fk_readings_video_vector_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("video_vector_id", "source", name=op.f("pk_readings")),
        sqlite_strict=True,
    )
    where = sa.text("state = 'pending'")
    columns = ["attempts", "video_vector_id"]
    name = "ix_readings_attempts_video_vector_id"
    op.create_index(name, "readings", columns, sqlite_where=where, postgresql_where=where)
