"""The seam of sources: a source opens a file, or a range of it, as a stream of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from media.sources.source_uris import SourceUri


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes.

    Attributes:
        first: Position of the first byte; None: the last ``last`` bytes.
        last: Position of the last byte, or number of bytes at the end; None: up to the end.
    """

    first: int | None
    last: int | None


@dataclass(frozen=True)
class RemoteStream:
    """Content of a remote file, or of a range of it.

    Attributes:
        chunks: The bytes in parts. Raises SourceOutage or InconsistentFile when the transfer breaks.
        total: Size of the whole file in bytes; None if the source does not state it.
        start: Position of the first byte.
        length: Number of bytes in ``chunks``; None if the source does not state it.
        is_partial: Whether the source answered with a range.
        version: ETag, generation or time of the content; None if the source does not state one.
    """

    chunks: Iterator[bytes]
    total: int | None
    start: int
    length: int | None
    is_partial: bool
    version: str | None


@dataclass(frozen=True)
class ListedFile:
    """A file in the listing of a source.

    Attributes:
        name: Path relative to the listed folder.
        size: Size in bytes.
        version: ETag or generation, which differs for different contents.
    """

    name: str
    size: int
    version: str


class MediaSource(Protocol):
    """A kind of source."""

    def open(self, uri: SourceUri, part: ByteRange | None = None) -> AbstractContextManager[RemoteStream]:
        """Open a file. A source may ignore ``part`` and return the whole file.

        Raises:
            MediaError: The file does not exist, or the source forbids access to it.
            RangeOutside: The file has no byte of the range.
            SourceOutage: The source cannot be reached at the moment.
        """
