"""Entries of the audit log that a test has caused."""

from __future__ import annotations

from typing import Any

from cinestrata_schemas.access import AuditRecord
from service.access.audit_log import list_entries
from service.core.list_parameters import AuditFilters


def audit_entries(**conditions: Any) -> list[AuditRecord]:
    """Return the entries that fulfil conditions, oldest first."""
    return list_entries(AuditFilters(**conditions, sort="time", limit=1000)).entries
