"""Reads of rows by the vector IDs of their videos."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Select, bindparam
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import KeyedColumnElement


class VideoRows:
    """A query of the rows of some videos, compiled once; consecutive IDs are read as a range.

    Args:
        query: Rows of all videos, as columns of the table, which are faster to read than objects.
        video: Column of the vector ID.
    """

    def __init__(self, query: Select[Any], video: KeyedColumnElement[Any]) -> None:
        self._of_ids = query.where(video.in_(bindparam("ids", expanding=True)))
        self._between = query.where(video.between(bindparam("first"), bindparam("last")))

    def read(self, session: Session, videos: Sequence[int]) -> Iterable[Any]:
        """Read the rows of videos, which are given by their vector IDs, ascending; at most as many as fit a query."""
        connection = session.connection()
        if videos and videos[-1] - videos[0] == len(videos) - 1:
            return connection.execute(self._between, {"first": videos[0], "last": videos[-1]})
        return connection.execute(self._of_ids, {"ids": list(videos)})
