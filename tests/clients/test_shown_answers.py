"""Responses in a notebook: pictures, marked words, pandas tables, and untrusted texts."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import httpx
import pytest
from fastapi.testclient import TestClient

from cinestrata_client import Client
from cinestrata_client.shown_answers import Connection, SearchResponse
from cinestrata_schemas.search import MatchedText
from cinestrata_schemas.videos import VideoPatch
from tests.api.browser import serve
from tests.api.conftest import learned_folder, library, rendered_world, world
from tests.cli.answers import search_answer, search_result

__all__ = ["learned_folder", "library", "rendered_world", "world"]

HOSTILE = "<img src=x onerror=\"alert(1)\"></td></mark>&amp; 'xylophone'"


@pytest.fixture(scope="module")
def url(client: TestClient, library: list[str]) -> Iterator[str]:
    """URL of a service with two domains."""
    with serve(client.app) as address:
        yield address


class _Tags(HTMLParser):
    """Collects tags and texts from HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect a tag."""
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        """Collect a text."""
        self.text += data


def test_search_shows_pictures_and_marks_words(url: str) -> None:
    with Client(url) as client:
        video = client.search("a clip", k=1).results[0].video_id
        before = client.get_video(video).captions
        client.edit_video(video, VideoPatch(captions=["a purple xylophone & a drum"]))
        answer = client.search("xylophone", k=3)
        client.edit_video(video, VideoPatch(captions=before))
    html = answer._repr_html_()  # also after the client was closed
    assert "a purple <mark>xylophone</mark> &amp; a drum" in html
    assert _Tags(html).tags.count("img") == 3
    assert 'src="data:image/jpeg;base64,/9j/' in html


def _answer(**fields: object) -> SearchResponse:
    return SearchResponse.model_validate(search_answer(results=[search_result(**fields)]).model_dump())


def test_texts_of_strangers_are_shown_as_text() -> None:
    match = MatchedText(
        kind="caption", text=HOSTILE, marks=[(HOSTILE.index("xyl"), HOSTILE.index("ne'") + 2)]
    )
    for answer in (_answer(captions=[HOSTILE], task=HOSTILE), _answer(words=[match], video_id=HOSTILE)):
        shown = _Tags(answer._repr_html_())
        assert set(shown.tags) <= {"table", "tr", "td", "mark", "br"}
        assert {name for name, _ in shown.attributes} == {"style"}
        assert HOSTILE in shown.text


@pytest.mark.parametrize("marks", [[(5, 2)], [(-3, 2)], [(0, 10**9)], [(0, 4), (2, 6), (2, 3)], [(9, 9)]])
def test_marks_of_any_positions_keep_the_text(marks: list[tuple[int, int]]) -> None:
    html = _answer(words=[MatchedText(kind="name", text="<b> & more", marks=marks)])._repr_html_()
    assert "<b> & more" in _Tags(html).text
    assert "b" not in _Tags(html).tags


def test_pictures_that_cannot_be_read_are_left_out(url: str) -> None:
    requests: list[str] = []

    def answer(status: int | None) -> Callable[[httpx.Request], httpx.Response]:
        def respond(request: httpx.Request) -> httpx.Response:
            requests.append(request.url.raw_path.decode())
            if status is None:
                raise httpx.ReadTimeout("")
            return httpx.Response(status)

        return respond

    for status, sent in ((404, 2), (None, 1)):  # a service that does not answer is asked once
        transport = httpx.MockTransport(answer(status))
        connection = Connection({"base_url": "http://localhost", "transport": transport})
        assert connection.pictures(["a/../b", "c"]) == {}
        assert len(requests) == sent
        assert requests.pop(0) == "/v1/videos/a%2F..%2Fb/thumbnail"
        requests.clear()


def test_pickled_answer_contains_no_key(url: str) -> None:
    page = Client(url, api_key="cine_secret_of_the_notebook").list_videos(limit=1)
    stored = pickle.dumps(page)
    assert b"secret_of_the_notebook" not in stored
    assert "secret_of_the_notebook" not in f"{page!r}{page.model_dump_json()}"
    assert pickle.loads(stored) == page  # noqa: S301
    for each in (pickle.loads(stored), copy.deepcopy(page)):  # noqa: S301
        assert page.videos[0].id in each._repr_html_()


def test_page_becomes_a_table_of_pandas(url: str) -> None:
    pytest.importorskip("pandas")
    client = Client(url)
    page = client.list_videos(limit=3)
    table = page.to_pandas()
    assert list(table["id"]) == [video.id for video in page.videos]
    assert list(table["captions"]) == [video.captions for video in page.videos]
    found = client.search("a clip", k=2)
    assert list(found.to_pandas()["score"]) == [result.score for result in found.results]
    empty = client.list_videos(text="no such video").to_pandas()
    assert (len(empty), list(empty.columns)) == (0, list(table.columns))
