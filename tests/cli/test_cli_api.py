"""``cinestrata api`` sends any request to a data folder or a service."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from index.files.manifest_format import Manifest
from service.access.audit_log import Actor, record_event
from service.core.settings import Settings
from tests.cli.answers import problem
from tests.cli.invocation import run

_api = partial(run, "api")


def test_list_is_read_edited_and_read_again(folder: Settings, publish_task: Callable[..., Manifest]) -> None:
    publish_task("a", 2)
    listed = _api("GET", "/videos", "task=a", "limit=1", "sort=-id")
    assert [video["id"] for video in json.loads(listed.stdout)["videos"]] == ["a-1"], listed.output
    metadata = '{"camera": 2, "place": "Küche [north]"}'
    edited = _api("PATCH", "v1/videos/a-0", 'captions=["夜の街"]', f"metadata={metadata}")
    assert edited.exit_code == 0, edited.output
    assert "夜の街" in edited.stdout
    video = json.loads(_api("GET", "/videos/a-0").stdout)
    assert (video["captions"], video["metadata"]) == (["夜の街"], json.loads(metadata))


def test_all_pages_are_requested(folder: Settings) -> None:
    for number in range(5):
        record_event("task.cancel", f"tsk_{number}", actor=Actor("user", "ada", None))
    pages = _api("GET", "/audit?sort=time", "limit=2", "action=task", "--paginate").stdout
    decoder, position, targets = json.JSONDecoder(), 0, []
    while position < len(pages.rstrip()):
        page, position = decoder.raw_decode(pages, position)
        position += 1
        targets.append([entry["target"] for entry in page["entries"]])
    assert targets == [["tsk_0", "tsk_1"], ["tsk_2", "tsk_3"], ["tsk_4"]]


def test_values_and_bodies_are_read_from_files(folder: Settings, tmp_path: Path) -> None:
    created = _api("POST", "/users", "name=ada", "scope=admin", "password=@-", given="correct horse\n")
    assert (created.exit_code, json.loads(created.stdout)["name"]) == (0, "ada"), created.output
    assert "10 to 1024" in _api("PATCH", "/users/ada", "password=@-", given="short\n").output
    body = tmp_path / "body.json"
    body.write_text('{"scope": "search"}')
    assert json.loads(_api("PATCH", "/users/ada", "--input", body).stdout)["scope"] == "search"
    assert json.loads(_api("DELETE", "/users/ada").stdout)["name"] == "ada"


def test_file_is_written_once(folder: Settings, tmp_path: Path) -> None:
    folder.backups_dir.mkdir()
    name = "cinestrata-20261101T080000Z-1.tar"
    (folder.backups_dir / name).write_bytes(b"backup")
    target = tmp_path / "copy.tar"
    written = _api("GET", f"/snapshots/{name}", "--output", target)
    assert (written.exit_code, target.read_bytes(), target.stat().st_mode & 0o77) == (0, b"backup", 0)
    again = _api("GET", f"/snapshots/{name}", "--output", target)
    assert (again.exit_code, "already exists" in again.output) == (1, True)
    missing = _api("GET", "/snapshots/other.tar", "--output", tmp_path / "b.tar")
    assert (missing.exit_code, (tmp_path / "b.tar").exists()) == (1, False)
    assert _api("DELETE", f"/snapshots/{name}").output == ""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("GET", "/videos", "task=nobody"), 1),
        (("GET", "/nosuch"), 1),
        (("GET", "/videos", "task"), 2),
        (("GET", "/videos", "limit=0"), 2),
        (("POST", "/keys", "--input", "/nosuch"), 2),
        (("SEND", "/keys"), 2),
    ],
)
def test_failure_is_an_error(folder: Settings, arguments: tuple[str, ...], status: int) -> None:
    outcome = _api(*arguments)
    assert (outcome.exit_code, outcome.stdout) == (status, ""), outcome.output
    assert outcome.stderr


def test_request_over_http_has_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        requests.append(request)
        return problem(404, "enough")

    client = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **how: client(**{**how, "transport": httpx.MockTransport(answer)})
    )
    url = ("--url", "http://127.0.0.1:9")
    assert "enough" in _api("PATCH", "/videos/a%2Fb", "captions=[]", "gain=NaN", *url).output
    _api("GET", "/videos", "task=東京", "limit=5", "state=a", "state=b", *url)
    assert (requests[0].method, requests[0].url.raw_path) == ("PATCH", b"/v1/videos/a%2Fb")
    assert json.loads(requests[0].content) == {"captions": [], "gain": "NaN"}
    assert requests[1].url.params.multi_items() == [
        ("task", "東京"),
        ("limit", "5"),
        ("state", "a"),
        ("state", "b"),
    ]
