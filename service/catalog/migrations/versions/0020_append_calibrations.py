"""Calibrations of appends in libraries of ``analytic``, which were fitted with other routing profiles.

Profiles with appended captions lacked the factor of the method, so their evidence counted four times. Searches of these
releases use the calibration of the release until the next append stores a new one.
"""

from __future__ import annotations

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Delete the calibrations."""
    op.execute(
        "DELETE FROM calibrations WHERE release_id IN (SELECT id FROM releases WHERE method = 'analytic')"
    )


def downgrade() -> None:
    """Change nothing: without a stored calibration, searches use that of the release."""
