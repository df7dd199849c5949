"""Division of sequences into chunks of bounded length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["chunks"]

Item = TypeVar("Item")


def chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Consecutive parts of a sequence, of ``size`` items each; the last part may be shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
