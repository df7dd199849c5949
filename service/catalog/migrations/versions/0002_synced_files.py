"""Let syncs remember their files, and videos that their file was replaced.

In 1.0, the ID of a synced video contains digests of its file's path and content; its rows are made from them.
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "catalog_2"
down_revision = "catalog_1"

_GROWING_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SYNCED_ID = re.compile(r"^.*-(?P<path>[0-9a-f]{16})-(?P<content>[0-9a-f]{8})$")
_ROWS = 1000  # per INSERT


def upgrade() -> None:
    """Create the table and the column, and the rows of the videos that 1.0 has synced."""
    op.add_column("videos", sa.Column("replaced_at", sa.DateTime(timezone=True), nullable=True))
    files = op.create_table(
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
    _describe_synced_videos(files)


def _describe_synced_videos(files: sa.Table) -> None:
    connection = op.get_bind()
    tasks = {
        row.id: row.target_id or row.relearns_id
        for row in connection.execute(sa.text("SELECT id, target_id, relearns_id FROM tasks"))
    }
    videos = connection.execute(
        sa.text("SELECT id, task_id, uri, bytes, content_hash FROM videos ORDER BY vector_id DESC")
    )
    rows, taken = [], set()
    for video in videos:
        match = _SYNCED_ID.match(video.id)
        if match is None:
            continue
        domain = video.task_id
        while (
            earlier := tasks.get(domain)
        ) in tasks:  # an append's domain, and the one it was relearned from
            domain = earlier
        key = match["path"]
        if (domain, key) in taken:  # an earlier version of the file
            key += match["content"]
        taken.add((domain, key))
        is_object = str(video.uri).startswith(("s3://", "gs://"))
        rows.append(
            {
                "task_id": domain,
                "key": key,
                "source": "",
                "bytes": video.bytes,
                "file_id": match["content"] if is_object else None,
                # A rejected video has only the start of its digest.
                "sha256": None if is_object else video.content_hash or match["content"],
                "video_id": video.id,
            }
        )
    for start in range(0, len(rows), _ROWS):
        connection.execute(files.insert(), rows[start : start + _ROWS])
