"""Lists and edits of videos from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import httpx
import pytest
from sqlalchemy import select

from cli.commands.search_commands import result_table
from cli.commands.task_commands import task_table
from cli.console import console, fail
from cli.shared_options import parse_value
from index.files.manifest_format import Manifest
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.settings import Settings
from tests.cli.answers import problem, search_answer, search_result, task_details
from tests.cli.invocation import run

_run = partial(run, "videos")


def _ids(output: str) -> list[str]:
    return [words[0] for line in output.splitlines()[1:] if (words := line.split()) and words[0][1:2] == "-"]


def test_videos_of_a_domain_are_listed_in_pages(
    folder: Settings, publish_task: Callable[..., Manifest]
) -> None:
    publish_task("a", 3)
    publish_task("b", 2)
    first = _run("list", "--task", "a", "--sort", "-id", "--limit", "2")
    assert (first.exit_code, _ids(first.output)) == (0, ["a-2", "a-1"]), first.output
    assert "--page 2" in first.output
    second = _run("list", "--task", "a", "--sort", "-id", "--limit", "2", "--page", "2")
    assert (_ids(second.output), "--page" in second.output) == (["a-0"], False)
    cursor = json.loads(_run("list", "--task", "a", "--limit", "2", "--json").output)["next_cursor"]
    assert _ids(_run("list", "--task", "a", "--limit", "2", "--cursor", cursor).output) == ["a-2"]
    beyond = _run("list", "--task", "a", "--limit", "2", "--page", "3")
    assert (beyond.exit_code, "the list ends on page 2" in beyond.output) == (3, True)
    assert len(_ids(_run("list").output)) == 5
    assert _ids(_run("list", "--text", "B-1").output) == ["b-1"]
    assert "No videos." in _run("list", "--status", "rejected").output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("list", "--task", "nobody"), "There is no task 'nobody'."),
        (("list", "--cursor", "x"), "cursor"),
        (("edit", "nobody", "--no-captions"), "There is no video 'nobody'."),
        (("edit", "a-0"), "Nothing to change."),
        (("edit", "a-0", "--caption", "a", "--no-captions"), "--no-captions"),
        (("edit", "a-0", "--set", "camera"), "--set camera is not an assignment."),
        (("edit", "a-0", "--set", "camera=1", "--unset", "camera"), "'camera' is given twice"),
        (("edit", "a-0", "--caption", ""), "captions[0]"),
    ],
)
def test_invalid_list_or_edit_is_reported(
    folder: Settings, publish_task: Callable[..., Manifest], arguments: tuple[str, ...], text: str
) -> None:
    publish_task("a", 1)
    outcome = _run(*arguments)
    status = 1 if text.startswith("There is no") else 2
    assert (outcome.exit_code, text in outcome.output) == (status, True), outcome.output


def test_captions_and_metadata_are_edited(folder: Settings, publish_task: Callable[..., Manifest]) -> None:
    publish_task("a", 1)
    edited = _run(
        *("edit", "a-0", "--caption", "a sign [/b]", "--caption", "夜の街", "--set", "camera=2"),
        *("--set", "place=Küche [north]", "--set", "gain=NaN"),
    )
    assert edited.exit_code == 0, edited.output
    expected = {
        "captions": ["a sign [/b]", "夜の街"],
        "metadata": {"camera": 2, "place": "Küche [north]", "gain": "NaN"},
    }
    assert json.loads(edited.stdout) == expected
    assert "a sign [/b] (+1)" in _run("list").output
    _run("edit", "a-0", "--no-captions", "--unset", "gain")
    with session_scope() as session:
        video = session.scalars(select(Video).where(Video.id == "a-0")).one()
        assert (video.captions, video.extra) == ([], {"camera": 2, "place": "Küche [north]"})


def test_edit_over_http_sends_only_the_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return problem(404, "enough")

    client = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **how: client(**{**how, "transport": httpx.MockTransport(answer)})
    )
    url = ("--url", "http://127.0.0.1:9")
    assert "enough" in _run("edit", "a/b", "--set", "camera=2", "--unset", "place", *url).output
    _run("edit", "a", "--no-captions", *url)
    _run("list", "--task", "東京", "--limit", "5", *url)
    assert [(request.method, request.url.raw_path) for request in requests[:2]] == [
        ("PATCH", b"/v1/videos/a%2Fb"),
        ("PATCH", b"/v1/videos/a"),
    ]
    assert json.loads(requests[0].content) == {"metadata": {"camera": 2, "place": None}}
    assert json.loads(requests[1].content) == {"captions": []}
    assert dict(requests[2].url.params) == {"task": "東京", "sort": "added", "limit": "5"}


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999", '{"a": NaN}', "[" * 100_000, "rain"])
def test_value_that_json_cannot_contain_is_a_text(text: str) -> None:
    assert parse_value(text) == text


def test_brackets_of_texts_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    task = task_details(name="rooms [/b] [north]")
    result = search_result(captions=["a sign [/exit] and [red]lights"])
    with console.capture() as capture:
        console.print(task_table([task]))
        console.print(result_table(search_answer(results=[result])))
        console.print("Task [/b]")
    assert "rooms [/b] [north]" in capture.get()
    assert "a sign [/exit] and [red]lights" in capture.get()
    assert "Task [/b]" in capture.get()
    with pytest.raises(Exception, match="1"):
        fail("No file [/b].", "Name [a].")
    assert capsys.readouterr().err == "No file [/b].\nName [a].\n"
