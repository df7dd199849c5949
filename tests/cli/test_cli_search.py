"""Notices of ``cinestrata search`` about the state of the service."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import httpx
import pytest

from tests.cli.answers import search_answer
from tests.cli.invocation import run

OUTAGE = datetime(2026, 11, 23, 7, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize("results", ["some", "none"])
@pytest.mark.parametrize("time", [OUTAGE, None])
def test_results_of_a_copy_of_the_catalog_have_its_time(
    time: datetime | None, results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = search_answer(metadata_as_of=time, **({"results": []} if results == "none" else {}))
    body = answer.model_dump(mode="json")
    client, transport = httpx.Client, httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    monkeypatch.setattr(httpx, "Client", lambda **how: client(**{**how, "transport": transport}))

    def search(*options: str) -> str:
        outcome = run("search", "a taxi", "--url", "http://127.0.0.1:9", *options)
        assert outcome.exit_code == (0 if results == "some" else 3), outcome.output
        return outcome.output

    output = " ".join(search().split())
    assert ("The catalog database can't be reached" in output) is (time is not None)
    assert (f"{OUTAGE.astimezone():%Y-%m-%d %H:%M:%S}" in output) is (time is not None)
    assert ("v1" in output) is (results == "some")
    stated = json.loads(search("--json"))["metadata_as_of"]
    assert (stated and datetime.fromisoformat(stated)) == time


@pytest.mark.parametrize(
    ("matching", "options", "line"),
    [
        (1, (), "1 video matches."),
        (1200, ("--mode", "latest"), "1,200 videos match."),
        (None, (), "The library has too few captions to tell which videos match: it needs at least 7"),
        (None, ("--mode", "latest"), None),
    ],
)
def test_correction_and_number_of_matches_are_shown(
    matching: int | None, options: tuple[str, ...], line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrected = "a taxi" if matching else None
    matches = None if matching is None else True
    body = search_answer(matches=matches, matching=matching, corrected=corrected).model_dump(mode="json")
    client, transport = httpx.Client, httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    monkeypatch.setattr(httpx, "Client", lambda **how: client(**{**how, "transport": transport}))
    outcome = run("search", "a taxy", "--url", "http://127.0.0.1:9", *options)
    assert outcome.exit_code == 0
    output = " ".join(outcome.output.split())
    assert ("Searched for: a taxi" in output) is (corrected is not None)
    assert ("match." in output or "matches." in output or "too few captions" in output) is (line is not None)
    assert line is None or line in output
