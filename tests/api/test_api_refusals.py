"""What no search understands is refused in words that a person can act on, never passed over."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/search?q=a+taxi&min_durtion=3", "min_durtion"),
        ("/search?q=a+taxi&colour=red", "colour"),
        ("/videos/vid_1/similar?where=%7B%7D", "where"),
        ("/videos/vid_1/captions?task=night", "task"),
    ],
)
def test_a_parameter_that_is_not_known_is_refused_by_name(client: TestClient, path: str, name: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 422
    (wrong,) = answer.json()["errors"]
    assert wrong["field"] == name
    assert "parameter does not exist" in wrong["message"]


@pytest.mark.parametrize("name", ["cursor", "min_confidence", "mode", "q"])
def test_a_clip_has_no_words_and_so_none_of_their_parameters(client: TestClient, name: str) -> None:
    answer = client.post("/search/clip", params={name: "0.5"}, files={"clip": ("a.mp4", b"x")})
    assert answer.status_code == 422
    assert [wrong["field"] for wrong in answer.json()["errors"]] == [name]


def test_a_batch_names_what_it_does_not_know(client: TestClient) -> None:
    answer = client.post("/search", json={"queries": [{"q": "a taxi"}, {"q": "a taxi", "colour": "red"}]})
    assert answer.status_code == 422
    (wrong,) = answer.json()["errors"]
    assert wrong["field"] == "queries[1].colour"
    assert "parameter does not exist" in wrong["message"]


@pytest.mark.parametrize(
    ("headers", "body", "said"),
    [
        ({}, b'{"queries": [{"q": "a taxi"}]}', "Content-Type: application/json"),
        (
            {"Content-Type": "text/plain"},
            b'{"queries": []}',
            "text/plain' is not supported here; add the header",
        ),
        (JSON, b"[]", "not a JSON object"),
        (JSON, b"\xff\xfe\x00", "not valid JSON"),
        (JSON, b'{"queries": ' + b"[" * 200_000, "not valid JSON"),
    ],
)
def test_a_body_that_is_no_batch_says_how_to_send_one(
    client: TestClient, headers: dict[str, str], body: bytes, said: str
) -> None:
    answer = client.post("/search", content=body, headers=headers)
    assert answer.status_code in (400, 422)
    assert said in answer.json()["detail"]


def test_a_clip_that_is_a_text_says_how_to_send_a_file(client: TestClient) -> None:
    answer = client.post("/search/clip", files={"clip": (None, "seen.mp4")})
    assert answer.status_code == 422
    (wrong,) = answer.json()["errors"]
    assert wrong["field"] == "clip"
    assert "not a file" in wrong["message"]
    assert "multipart/form-data" in wrong["message"]


def test_a_body_without_parts_says_how_to_send_a_file(client: TestClient) -> None:
    answer = client.post("/search/clip", content=b"x", headers={"Content-Type": "multipart/form-data"})
    assert answer.status_code == 400
    assert "-F" in answer.json()["detail"]
