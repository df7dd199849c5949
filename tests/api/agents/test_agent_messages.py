"""Messages to ``POST /mcp`` as clients of many kinds send them, and answers that none of them drops."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from service.core import request_limits
from tests.api.learned_library import FIRST

JSON, EVENTS = "application/json", "text/event-stream"
BOTH = f"{JSON}, {EVENTS}"
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
LONGEST = 60_000  # bytes of an answer's text, as it is sent
SENTENCE = "夜の街を歩く人。"


def _post(
    client: TestClient, message: Any, path: str = "/mcp", accept: str | None = BOTH, **headers: str
) -> httpx.Response:
    request = client.build_request("POST", path, json=message, headers=headers)
    request.headers.pop("accept")
    if accept is not None:
        request.headers["accept"] = accept
    return client.send(request)


def _call(client: TestClient, tool: str, arguments: Any = None) -> dict[str, Any]:
    """Return the result of a tool, whose text is short enough for every client."""
    params = {"name": tool, "arguments": {} if arguments is None else arguments}
    result = dict(_post(client, {**LIST, "method": "tools/call", "params": params}).json()["result"])
    assert len(json.dumps(result["content"][0]["text"])) <= LONGEST
    assert "structuredContent" not in result
    return result


def _data(client: TestClient, tool: str, **arguments: Any) -> dict[str, Any]:
    result = _call(client, tool, arguments)
    assert not result["isError"], result["content"]
    return dict(json.loads(result["content"][0]["text"])["untrusted_data"])


@pytest.fixture(scope="module")
def videos(client: TestClient, library: list[str]) -> list[str]:
    """IDs of all videos."""
    results = client.get("/search", params={"q": "a clip", "k": 100}).json()["results"]
    return [result["video_id"] for result in results]


@pytest.mark.parametrize(
    "extra",
    [
        {
            "toolCallId": "call_1",
            "sessionId": "s",
            "action": "sendMessage",
            "chatInput": "x",
            "tool": "search",
        },
        {"tool_call_id": "c", "session_id": "s", "sessionid": "s", "_sessionID": "s", "toolName": "search"},
        {"sessionId": None, "toolCallId": {"id": "c", "type": "function"}, "action": ["a"]},
        {"k": None, "domains": None, "cursor": None, "toolCallId": "c"},
    ],
)
def test_bookkeeping_of_clients_changes_no_answer(
    client: TestClient, videos: list[str], extra: dict[str, Any]
) -> None:
    arguments = {
        "search": {"query": "a clip"},
        "list_domains": {},
        "look_at_video": {"video_id": videos[0]},
        "find_similar": {"video_id": videos[0]},
    }
    for tool, own in arguments.items():
        assert _call(client, tool, extra | own) == _call(client, tool, own)


@pytest.mark.parametrize("params", [{"name": "list_domains"}, {"name": "list_domains", "arguments": None}])
def test_call_may_leave_out_its_arguments(client: TestClient, library: list[str], params: Any) -> None:
    params["_meta"] = {"progressToken": 0}
    answer = _post(client, {**LIST, "method": "tools/call", "params": params})
    assert FIRST in answer.json()["result"]["content"][0]["text"]


@pytest.mark.parametrize("version", [None, "2025-06-18"])
@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        (JSON, JSON),
        ("application/*", JSON),
        (BOTH, JSON),
        (f"{EVENTS}, {JSON}", JSON),
        ("Application/JSON, Text/Event-Stream", JSON),
        ("application/json;q=0.9,text/event-stream;q=0.8", JSON),
        ("application/json; charset=utf-8, text/event-stream", JSON),
        ("application/json, text/plain, */*", JSON),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", JSON),
        ("garbage;;q=x", JSON),
        (EVENTS, EVENTS),
        ("text/*", EVENTS),
    ],
)
def test_answer_has_a_type_that_the_client_accepts(
    client: TestClient, accept: str | None, answered: str, version: str | None
) -> None:
    headers = {} if version is None else {"MCP-Protocol-Version": version}
    answer = _post(client, LIST, accept=accept, **headers)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, answered)
    expected = _post(client, LIST).json()
    event = "event: message\r\ndata: " if answered == EVENTS else ""
    assert json.loads(answer.text.removeprefix(event)) == expected


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/?x=1", "/v1/mcp", "/v1/mcp/"])
def test_every_spelling_of_the_path_answers(client: TestClient, path: str) -> None:
    filler = " " * 100_000  # other routes refuse such a body
    assert _post(client, {**LIST, "filler": filler}, path=path).status_code == 200
    for method in ("GET", "HEAD", "DELETE"):
        refused = client.request(method, path, headers={"Accept": EVENTS})
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.mark.slow
def test_captions_of_a_video_are_read_page_by_page(client: TestClient, videos: list[str]) -> None:
    captions = [f"{n} {SENTENCE * 300}"[: request_limits.MAX_CAPTION_CHARS] for n in range(64)]
    metadata = {"exif": SENTENCE * 660}  # almost 16 KB
    cues = [{"start": n, "end": n + 1, "text": f"{n} {SENTENCE}"} for n in range(1000)]
    _patch(client, videos[0], captions=captions, metadata=metadata, transcript=cues)
    read: list[str] = []
    spoken: list[str] = []
    page = {"next_caption": 0, "next_cue": 0}
    while page.get("next_caption") is not None or page["next_cue"] is not None:
        following = (
            page.get("next_caption", 64),
            page["next_cue"] if page["next_cue"] is not None else 10**9,
        )
        page = _data(
            client, "look_at_video", video_id=videos[0], first_caption=following[0], first_cue=following[1]
        )
        assert page["metadata"]["exif"] == metadata["exif"]
        assert "shortened" not in page
        assert page.get("all_captions", 64) == 64
        read += page.get("captions", [])
        spoken += [cue["text"] for cue in page["transcript"]]
    assert read == captions
    assert spoken == [cue["text"] for cue in cues]
    assert client.get(f"/videos/{videos[0]}").json()["captions"] == captions
    corrected = _data(
        client, "correct_caption", video_id=videos[0], caption=captions[-1], corrected="a purple xylophone"
    )
    assert corrected["captions"] == captions[: corrected["next_caption"]]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["🎂", '"'])
def test_results_with_long_texts_are_all_shown_best_first(
    client: TestClient, videos: list[str], text: str
) -> None:
    caption = f"marimba {text * 2000}"[: request_limits.MAX_CAPTION_CHARS]
    for video in videos:
        _patch(client, video, captions=[caption] * 4, metadata={"exif": caption})
    answer = _data(client, "search", query="marimba", k=20, moments=10, thumbnails=False)
    scores = [result["score"] for result in answer["results"]]
    assert (scores, len(scores)) == (sorted(scores, reverse=True), 20)
    assert answer["next_cursor"]
    assert "look_at_video" in answer["shortened"]
    for result in answer["results"]:
        assert all(caption.startswith(shown.removesuffix("…")) for shown in result["captions"])
        assert result["more_captions"] == "1 in look_at_video"
    similar = _data(client, "find_similar", video_id=videos[0], k=20, thumbnails=False)
    assert "look_at_video" in similar["shortened"]


def test_schemas_of_tools_have_no_references(client: TestClient, library: list[str]) -> None:
    answer = _post(client, LIST)
    assert len(answer.content) < 40_000
    tools = {tool["name"]: tool["inputSchema"] for tool in answer.json()["result"]["tools"]}
    assert not [name for name, schema in tools.items() if "$" in json.dumps(schema).replace("{1,128}$", "")]
    assert {schema["type"] for schema in tools.values()} == {"object"}
    video = tools["add_domain"]["properties"]["videos"]["items"]
    cue = video["properties"]["transcript"]["items"]
    assert (video["required"], video["additionalProperties"]) == (["uri"], False)
    assert (cue["required"], cue["properties"]["start"]["minimum"]) == (["start", "end", "text"], 0)
    assert "$ref" in client.get("/openapi.json").text


def _patch(client: TestClient, video: str, **change: Any) -> None:
    answer = client.patch(f"/videos/{video}", json=change)
    assert answer.status_code == 200, answer.text
