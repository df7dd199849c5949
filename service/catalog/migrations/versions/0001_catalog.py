"""The schema of version 1.0.0. New catalogs are created from the tables, with the newest schema."""

from __future__ import annotations

revision = "catalog_1"
down_revision = None


def upgrade() -> None:
    """Do nothing: every catalog with a revision has these tables."""
