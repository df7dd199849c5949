"""Sessions of the key of the environment without a digest that could be guessed.

A session stored the SHA-256 of a key that a person may have chosen. Now a session stores an HMAC of the key with the
token of the session, so that a copy of the catalog does not permit guesses.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Delete the digests with their sessions, which end: their tokens, and so their HMACs, are not stored."""
    op.execute("DELETE FROM browser_sessions WHERE environment_key IS NOT NULL")


def downgrade() -> None:
    """Delete the sessions, whose HMACs an earlier version does not accept."""
    op.execute("DELETE FROM browser_sessions WHERE environment_key IS NOT NULL")
