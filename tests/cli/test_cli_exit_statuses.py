"""Exit statuses: 0 success, 1 error or unknown name, 2 invalid call."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from index.files.manifest_format import Manifest
from service.core.settings import Settings
from tests.cli.invocation import run

USAGE_FAULTS = (
    "nosuch",
    "search ''",
    "search '   '",
    "search cat -k 100000",
    "search cat -k many",
    "search cat --mode other",
    "search cat --page 0",
    "search cat --cursor nonsense",
    "search cat --routes some",
    "search cat --min-confidence 2",
    "search cat --min-duration -1",
    "search cat --where nothing",
    "search cat --where a=1 --where a=2",
    "search cat --after yesterday",
    "search cat --url nonsense",
    "similar a-0 -k 0",
    "api GET /videos limit=0",
    "ingest . --into a --name b",
    "ingest . --set nothing",
    "sync . --every sometimes",
    "sync . --every 1h --dry-run",
    "snapshot",
    "snapshot --url http://127.0.0.1:9/ --index-only x.tar",
    "compact --url http://127.0.0.1:9/ --dry-run",
    "keys create k --scope root",
    "up --port 70000",
)
UNKNOWN_NAMES = (
    "search cat --task nosuch",
    "similar nosuch",
    "tasks show nosuch",
    "tasks retry nosuch",
    "relearn nosuch",
    "compact nosuch",
    "syncs --remove nosuch",
    "api DELETE /keys/nosuch",
    "ingest nosuch.jsonl",
)
SUCCESSES = ("tasks list", "syncs", "api GET /releases", "compact --dry-run")


STATUSES = {2: USAGE_FAULTS, 1: UNKNOWN_NAMES, 0: SUCCESSES}


@pytest.mark.slow
@pytest.mark.parametrize("status", STATUSES)
def test_exit_status_tells_the_kinds_of_failures_apart(
    folder: Settings,
    publish_task: Callable[..., Manifest],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    status: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    publish_task("a", 2)
    _require_status(status, [call for call in STATUSES[status] if not _loads_model(call)])


@pytest.mark.slow
@pytest.mark.parametrize("status", [1, 2])
def test_searches_tell_the_kinds_of_failures_apart(
    folder: Settings, publish_task: Callable[..., Manifest], status: int
) -> None:
    publish_task("a", 2)
    _require_status(status, list(filter(_loads_model, STATUSES[status])))


def _loads_model(call: str) -> bool:
    return call.startswith(("search", "similar"))


def _require_status(status: int, calls: list[str]) -> None:
    outcomes = {call: run(*shlex.split(call)) for call in calls}
    wrong = {
        call: (result.exit_code, result.output)
        for call, result in outcomes.items()
        if result.exit_code != status
    }
    assert not wrong
    if status:
        silent = [call for call, result in outcomes.items() if not result.output.strip()]
        assert not silent
