"""Column types for the catalog that mark a damaged value instead of failing.

SQLite stores any value in any column, and a JSON value may have any shape. One damaged value must not hide the other
rows of a list. It is therefore read as an empty value that :func:`is_damaged` recognizes, and refused when stored
again, which would make the damage look intended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args

import structlog
from pydantic import TypeAdapter
from sqlalchemy import JSON, Column, DateTime, Dialect, String, TypeDecorator
from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.types import TypeEngine

from service.core.errors import CatalogDamaged

log = structlog.get_logger(__name__)

damaged_reads: Counter[str] = Counter()  # damaged values that this process has read, by table and column


class _Damaged:
    """Marks a placeholder for a damaged value."""

    __slots__ = ()


class _DamagedObject(_Damaged, dict[str, Any]): ...


class _DamagedList(_Damaged, list[Any]): ...


class _DamagedText(_Damaged, str): ...


class _DamagedInteger(_Damaged, int): ...


class _DamagedFloat(_Damaged, float): ...


class _DamagedTime(_Damaged, datetime): ...


def is_damaged(value: object) -> bool:
    """Check whether a catalog value could not be read."""
    return isinstance(value, _Damaged)


class DamagedValueStored(CatalogDamaged, DontWrapMixin):
    """A damaged value was about to be copied to another row."""


class StoredType(TypeDecorator[Any]):
    """A column type that marks damaged values when reading them.

    Attributes:
        shape: The required shape, in words.
        marked: Placeholder for a damaged value.
    """

    shape: str
    marked: Any
    _column: Column[Any] | None = None

    def decode(self, stored: Any, read: Callable[[Any], Any]) -> Any:
        """Decode a value.

        Args:
            stored: The value that the database driver returns.
            read: The undecorated type's conversion.

        Raises:
            ValueError, TypeError, RecursionError: The value is damaged.
        """
        raise NotImplementedError

    def checker(self, dialect: Dialect) -> Callable[[Any], bool]:
        """Create a function that checks whether a value from the driver can be read."""
        implementation: Any = self.dialect_impl(dialect)
        read: Callable[[Any], Any] = (
            TypeDecorator.result_processor(implementation, dialect, None) or _unchanged
        )

        def accepts(stored: Any) -> bool:
            try:
                self.decode(stored, read)
            except (ValueError, TypeError, RecursionError):
                return False
            return True

        return accepts

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Create a function that decodes a value and checks it."""
        read = super().result_processor(dialect, coltype) or _unchanged

        def process(stored: Any) -> Any:
            if stored is None:  # also for the missing row of an outer join
                return None
            try:
                return self.decode(stored, read)
            except (ValueError, TypeError, RecursionError):
                if (place := str(self._column)) not in damaged_reads:
                    log.error(
                        "catalog_value_damaged", column=place, hint="`cinestrata doctor` names its row."
                    )
                damaged_reads[place] += 1
                return self.marked

        return process

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Refuse a damaged value.

        Raises:
            CatalogDamaged: The value is damaged.
        """
        if is_damaged(value):
            raise DamagedValueStored(
                f"a value of {self._column} is not {self.shape}; `cinestrata doctor` names its row"
            )
        return value


def _unchanged(value: Any) -> Any:
    return value


class StoredJson(StoredType):
    """A JSON object or a list of texts.

    Args:
        kind: ``dict`` or ``list``.
        nullable: Whether an object may be missing (NULL).
        of: Pydantic type of the whole value, unless every object or list of texts is valid.
    """

    impl = JSON
    cache_ok = True

    def __init__(
        self, kind: type[dict[str, Any]] | type[list[Any]], *, nullable: bool = False, of: Any = None
    ) -> None:
        super().__init__(none_as_null=nullable)
        self.kind, self.nullable, self.of = kind, nullable, of
        self._validated = TypeAdapter(of or (list[str] if kind is list else dict[str, Any]))
        words = "an object" if kind is dict else "a list" if of else "a list of texts"
        self.shape = f"{words} with the required fields" if of else words

    @property
    def marked(self) -> Any:
        """An empty object or list."""
        return _DamagedObject() if self.kind is dict else _DamagedList()

    def decode(self, stored: Any, read: Callable[[Any], Any]) -> Any:
        """Decode JSON of the required shape."""
        value = read(stored)
        if value is None and self.nullable:
            return value
        self._validated.validate_python(value)
        if not isinstance(value, self.kind):
            raise TypeError(self.shape)
        return value


class UtcDateTime(StoredType):
    """An aware UTC time, also on SQLite, which stores no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True
    marked = _DamagedTime(1970, 1, 1, tzinfo=UTC)
    shape = "a time"

    @property
    def python_type(self) -> type[datetime]:
        """Type of the values."""
        return datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert an aware time to UTC."""
        value = super().process_bind_param(value, dialect)
        return value.astimezone(UTC) if value is not None else None

    def decode(self, stored: Any, read: Callable[[Any], Any]) -> datetime:
        """Convert to an aware time in UTC."""
        value: datetime = read(stored)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class StoredChoice(StoredType):
    """One of several words.

    Args:
        choice: ``Literal`` type that lists the words.
        marked: Placeholder for a damaged word.
        length: Maximum length of a word.
    """

    impl = String
    cache_ok = True

    def __init__(self, choice: Any, marked: str, *, length: int = 16) -> None:
        super().__init__(length)
        self.choice, self.marked, self.length = choice, _DamagedText(marked), length
        self.shape = f"one of {', '.join(get_args(choice))}"

    def decode(self, stored: Any, read: Callable[[Any], Any]) -> Any:
        """Check that a word is among the choices."""
        if stored not in get_args(self.choice):
            raise ValueError(self.shape)
        return stored


class _StoredScalar(StoredType):
    """A text, number or boolean. PostgreSQL checks these itself.

    Args:
        wrapped: Undecorated type.
    """

    impl: Any = String
    cache_ok = True
    coerce_to_is_types = (type(None), bool)  # PostgreSQL accepts only constants after IS, no parameters
    _TYPES = {  # noqa: RUF012
        str: ("a text", (str,), _DamagedText("")),
        int: ("an integer", (int,), _DamagedInteger()),
        float: ("a number", (int, float), _DamagedFloat()),
        bool: ("a truth value", (int,), _DamagedInteger()),
        bytes: ("bytes", (bytes,), b""),
    }

    def __init__(self, wrapped: TypeEngine[Any]) -> None:
        super().__init__()
        self.impl = self.wrapped = wrapped
        self.shape, self._stored, self.marked = self._TYPES[wrapped.python_type]

    @property
    def python_type(self) -> type[Any]:
        """Type of the values."""
        return self.wrapped.python_type

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Choose the type of a value that a query compares with the column, as without marks."""
        return self.wrapped.coerce_compared_value(op, value)

    def checker(self, dialect: Dialect) -> Callable[[Any], bool]:
        """Create a function that checks whether a value can be read; any can if the database checks types."""
        return super().checker(dialect) if dialect.name == "sqlite" else lambda stored: True

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Create a function that checks a value; None if the database does."""
        if dialect.name == "sqlite":
            return super().result_processor(dialect, coltype)
        return TypeDecorator.result_processor(self, dialect, coltype)

    def decode(self, stored: Any, read: Callable[[Any], Any]) -> Any:
        """Check the type of the stored value."""
        if not isinstance(stored, self._stored):
            raise TypeError(self.shape)
        return read(stored)


def check_values(column: Column[Any]) -> None:
    """Make a column check what it reads, and name itself if a value is damaged."""
    if column.type._isnull:  # a foreign key gets its type once it is resolved
        return
    if not isinstance(column.type, StoredType):
        column.type = _StoredScalar(column.type)
    column.type._column = column
