"""Responses that display themselves in a notebook and convert to pandas: one page of videos each."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, ClassVar, get_args
from urllib.parse import quote

import httpx
from pydantic import PrivateAttr

from cinestrata_schemas import search, videos
from cinestrata_schemas.model_types import ResponseModel

_SHOWN = 20  # of a page
_SECONDS = 10.0  # until an unanswered picture is left out
_STYLE = "max-width:160px;max-height:120px"


class Connection:
    """Opens connections to the service; a pickled response has none, because it would contain the key."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.options = options

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Connection)  # equal responses may come from different clients

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[type[Connection], tuple[()]]:
        return Connection, ()

    def pictures(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Fetch thumbnails by video ID; those that cannot be read are left out."""
        found: dict[str, bytes] = {}
        if self.options is None:
            return found
        with httpx.Client(**{**self.options, "timeout": _SECONDS}) as http:
            for video_id in ids:
                try:
                    answer = http.get(f"/v1/videos/{quote(video_id, safe='')}/thumbnail")
                except httpx.HTTPError:
                    break
                if answer.is_success:
                    found[video_id] = answer.content
        return found


class ShownAnswer(ResponseModel):
    """A page of videos."""

    _list: ClassVar[str] = "results"  # name of the list of videos
    _connection: Connection = PrivateAttr(default_factory=Connection)

    def connect(self, connection: Connection) -> None:
        """Set the connection to read pictures from."""
        self._connection = connection

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row for each video of this page; needs pandas."""
        import pandas

        (kind,) = get_args(type(self).model_fields[self._list].annotation)
        rows = [entry.model_dump() for entry in getattr(self, self._list)]
        return pandas.DataFrame(rows, columns=list(kind.model_fields))

    def _repr_html_(self) -> str:
        entries = getattr(self, self._list)
        shown = entries[:_SHOWN]
        pictures = self._connection.pictures([_video_id(entry) for entry in shown])
        rows = "".join(_row(entry, pictures.get(_video_id(entry))) for entry in shown)
        more = f"<p>{len(entries) - _SHOWN} more on this page</p>" if len(entries) > _SHOWN else ""
        return f"<table>{rows}</table>{more}" if rows else "<p>No videos</p>"


class SearchResponse(ShownAnswer, search.SearchResponse):
    """Results of a query."""


class SimilarVideosResponse(ShownAnswer, search.SimilarVideosResponse):
    """Videos similar to a library video."""


class VideoPage(ShownAnswer, videos.VideoPage):
    """A page of videos."""

    _list = "videos"


def _video_id(entry: Any) -> str:
    return str(entry.video_id if isinstance(entry, search.SearchResult) else entry.id)


def _row(entry: Any, picture: bytes | None) -> str:
    """Format a table row; all text is escaped, because other people wrote it."""
    image, facts = "", [_video_id(entry)]
    if picture is not None:
        image = f'<img style="{_STYLE}" src="data:image/jpeg;base64,{base64.b64encode(picture).decode()}">'
    text = escape(entry.captions[0]) if entry.captions else ""
    if isinstance(entry, search.SearchResult):
        facts += [entry.task, f"{entry.score:.3f}"]
        facts += [f"{moment.start:.0f}–{moment.end:.0f} s" for moment in entry.moments[:1]]
        text = _marked(entry.words[0]) if entry.words else text
    cells = (image, text, "<br>".join(map(escape, facts)))
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"


def _marked(match: search.MatchedText) -> str:
    """Format a text as HTML, with its matched words in ``mark`` elements."""
    parts, position = [], 0
    for start, end in sorted(match.marks):
        if position <= start < end:
            parts += [escape(match.text[position:start]), f"<mark>{escape(match.text[start:end])}</mark>"]
            position = end
    return "".join(parts) + escape(match.text[position:])
