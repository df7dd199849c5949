"""Read table rows by their videos' vector IDs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Select, bindparam
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import KeyedColumnElement


class RowsByVideo:
    """A query for rows by video, compiled once. Consecutive IDs are read as a range.

    Args:
        query: Selects the rows of all videos, as table columns, which are faster to read than objects.
        video: Column with the vector ID.
    """

    def __init__(self, query: Select[Any], video: KeyedColumnElement[Any]) -> None:
        self._of_ids = query.where(video.in_(bindparam("ids", expanding=True)))
        self._between = query.where(video.between(bindparam("first"), bindparam("last")))

    def read(self, session: Session, videos: Sequence[int]) -> Iterable[Any]:
        """Read the rows of videos, given by ascending vector IDs; at most as many IDs as fit in a query."""
        connection = session.connection()
        if videos and videos[-1] - videos[0] == len(videos) - 1:
            return connection.execute(self._between, {"first": videos[0], "last": videos[-1]})
        return connection.execute(self._of_ids, {"ids": list(videos)})
