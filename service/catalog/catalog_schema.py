"""All tables of the catalog.

SQLAlchemy knows a table once its module is imported, so the modules that a process happens to use do not suffice for
code that treats the catalog as a whole: a copy of it, and its migrations.
"""

from __future__ import annotations

from service.catalog import access_tables, operation_tables  # noqa: F401
from service.catalog.tables import Base

__all__ = ["CATALOG_SCHEMA"]

CATALOG_SCHEMA = Base.metadata
