"""Notices of ``cinestrata search`` about the state of the service."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cinestrata_schemas.search import SearchResponse
from cli.main import app

OUTAGE = datetime(2026, 11, 23, 7, 5, 9, tzinfo=UTC)


def _response(**fields: Any) -> dict[str, Any]:
    result = {
        "rank": 1,
        "video_id": "v1",
        "uri": "v1.mp4",
        "task": "cars",
        "task_id": "tsk_cars",
        "score": 0.5,
    }
    answer = {
        "query": "a taxi",
        "mode": "pinned",
        "release": "f" * 64,
        "generation": 1,
        "results": [{**result, "captions": ["a taxi"], "thumbnail_url": "/t", "stream_url": "/s"}],
        "routing": [{"task": "cars", "task_id": "tsk_cars", "weight": 1.0, "searched": True}],
        "timing_ms": dict.fromkeys(("encode", "route", "search", "merge", "total"), 1.0),
    }
    return SearchResponse.model_validate(answer | fields).model_dump(mode="json")


@pytest.mark.parametrize("results", ["some", "none"])
@pytest.mark.parametrize("time", [OUTAGE, None])
def test_results_of_a_copy_of_the_catalog_have_its_time(
    time: datetime | None, results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = _response(metadata_as_of=time, **({"results": []} if results == "none" else {}))
    client, transport = httpx.Client, httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    monkeypatch.setattr(httpx, "Client", lambda **how: client(**{**how, "transport": transport}))

    def search(*options: str) -> str:
        command = ["search", "a taxi", "--url", "http://127.0.0.1:9", *options]
        outcome = CliRunner().invoke(app, command)
        assert outcome.exit_code == (0 if results == "some" else 3), outcome.output
        return outcome.output

    output = " ".join(search().split())
    assert ("The catalog database cannot be reached" in output) is (time is not None)
    assert (f"{OUTAGE.astimezone():%Y-%m-%d %H:%M:%S}" in output) is (time is not None)
    assert ("v1" in output) is (results == "some")
    stated = json.loads(search("--json"))["metadata_as_of"]
    assert (stated and datetime.fromisoformat(stated)) == time
