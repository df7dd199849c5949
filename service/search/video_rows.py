"""Catalog rows of the videos of a domain, in a compact form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np


class VideoRow(NamedTuple):
    """Columns of a video that searches use.

    Attributes:
        video_id: Identifier of the video.
        uri: URI of its file, as it was sent.
        captions: Captions.
        duration: Seconds; None where unknown, or not read because only filters need it.
        metadata: Metadata of the user; empty where not read.
    """

    video_id: str
    uri: str
    captions: list[str]
    duration: float | None = None
    metadata: Mapping[str, Any] = MappingProxyType({})


class VideoRows:
    """Rows of videos as JSON in one buffer: objects of Python would need several times the memory.

    Args:
        rows: Vector ID and row of each video, by ascending vector ID.
    """

    def __init__(self, rows: Iterable[tuple[int, VideoRow]]) -> None:
        ids: list[int] = []
        ends: list[int] = [0]
        buffer = bytearray()
        for vector_id, row in rows:
            ids.append(vector_id)
            buffer += json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
            ends.append(len(buffer))
        self._ids = np.array(ids, np.int64)
        self._ends = np.array(ends, np.int64)
        self._buffer = bytes(buffer)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return len(self._buffer) + self._ids.nbytes + self._ends.nbytes

    def find(self, vector_ids: Iterable[int]) -> dict[int, VideoRow]:
        """Vector ID → row; IDs of other videos are left out."""
        wanted = np.fromiter(vector_ids, np.int64)
        places = np.searchsorted(self._ids, wanted)
        is_known = places < len(self._ids)
        is_known[is_known] = self._ids[places[is_known]] == wanted[is_known]
        return {
            int(vector_id): self._row(int(place))
            for vector_id, place in zip(wanted[is_known], places[is_known], strict=True)
        }

    def __iter__(self) -> Iterator[tuple[int, VideoRow]]:
        return ((int(vector_id), self._row(place)) for place, vector_id in enumerate(self._ids))

    def _row(self, place: int) -> VideoRow:
        return VideoRow(*json.loads(self._buffer[self._ends[place] : self._ends[place + 1]]))
