"""The change sequence: numbers of edits, by which a caller's searches include the caller's own edits.

A response to an edit has its number in the header :data:`HEADER`. Clients send the highest back, and a search with it
waits until this process has read the caller's edits. Other searches do not wait for the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

HEADER = "Cinestrata-Change-Sequence"
LATEST = 2**63 - 1  # in a request: all edits committed before it


@dataclass
class ChangeSequence:
    """Numbers of one request: the edit that its searches include, and its own last edit; 0 for none."""

    required: int = 0
    written: int = 0


_current: ContextVar[ChangeSequence | None] = ContextVar("change_sequence", default=None)


@contextmanager
def following(header: str) -> Iterator[ChangeSequence]:
    """Follow the sequence of a request during the block; a header that is no number requires nothing."""
    is_number = header.isascii() and header.isdecimal()
    sequence = ChangeSequence(min(int(header[:20]), LATEST) if is_number else 0)
    token = _current.set(sequence)
    try:
        yield sequence
    finally:
        _current.reset(token)


def note_edit(number: int) -> None:
    """Note the number of an edit for the response."""
    if (sequence := _current.get()) is not None:
        sequence.written = max(sequence.written, number)


def required_edit() -> int:
    """Get the number of the edit that searches of this request include; 0 for none."""
    sequence = _current.get()
    return sequence.required if sequence else 0
