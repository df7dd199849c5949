"""Types of the catalog's columns, and checks by which SQLite accepts only the values that PostgreSQL accepts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, DateTime, Dialect, Table, TypeDecorator
from sqlalchemy.dialects.sqlite.base import SQLiteTypeCompiler


class StoredJson(TypeDecorator[Any]):
    """A JSON object or array.

    Args:
        kind: ``dict`` or ``list``.
        nullable: Whether None is NULL.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, kind: type[dict[str, Any]] | type[list[Any]], *, nullable: bool = False) -> None:
        super().__init__(none_as_null=nullable)
        self.kind = kind


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time, also on SQLite, which stores no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @property
    def python_type(self) -> type[datetime]:
        """Type of the values."""
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert an aware time to UTC."""
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to an aware time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class StrictTypeCompiler(SQLiteTypeCompiler):
    """Names SQLite's storage class of each type; its STRICT tables accept no other names."""

    def _text(self, type_: Any, **options: Any) -> str:
        return "TEXT"

    def _integer(self, type_: Any, **options: Any) -> str:
        return "INTEGER"

    def _real(self, type_: Any, **options: Any) -> str:
        return "REAL"

    visit_VARCHAR = visit_DATETIME = visit_JSON = _text  # noqa: N815
    visit_BIGINT = visit_BOOLEAN = _integer  # noqa: N815
    visit_FLOAT = _real  # noqa: N815


def check_json(table: Table) -> None:
    """Make SQLite refuse values in JSON columns that are not JSON, or of another kind."""
    for column in table.columns:
        if isinstance(column.type, StoredJson):
            kind = "object" if column.type.kind is dict else "array"
            check = (
                f"{column.name} IS NULL OR json_valid({column.name}) AND json_type({column.name}) = '{kind}'"
            )
            table.append_constraint(CheckConstraint(check, name=column.name).ddl_if(dialect="sqlite"))
