"""Conventions of all commands: JSON output, exit statuses, widths, and hints that name commands."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import click
import pytest
import typer
from rich.console import Console
from typer.main import get_command

from cinestrata_schemas.problems import Action, ActionName
from cinestrata_schemas.tasks import RejectedVideo, TaskProgress, VideoCounts
from cli.commands.task_commands import shown_name, task_table
from cli.console import action_command, console, fail, plain_table
from cli.embedded.data_folder import hold_data_folder
from cli.main import app
from index.files.manifest_format import Manifest
from service.core.errors import InvalidInput
from service.core.settings import Settings
from tests.cli.invocation import run, search_answer, search_result, task_details
from tests.web_files import WebFiles

# Commands that run until they are stopped, write their results to files, or always print JSON.
WITHOUT_JSON = ("up", "serve", "worker", "migrate", "demo", "bench", "mcp", "api")


def _leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from _leaves(child, f"{path} {name}".strip())
    else:
        yield path, command


def test_texts_of_a_service_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        fail("wrong \x1b]0;title\x07\x9b2J\u202e", "hint\x1b[2J\nsecond line")
    assert capsys.readouterr().err == "wrong ]0;title2J\nhint[2J\nsecond line\n"
    table = plain_table("name", "state")
    table.add_row("night\x1b[2J", "ready")
    console.print(table)
    assert capsys.readouterr().out.splitlines()[1].split() == ["night[2J", "ready"]


def test_every_command_with_a_result_has_json_output() -> None:
    missing = [
        path
        for path, command in _leaves(get_command(app))
        if path.split()[0] not in WITHOUT_JSON
        and not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert not missing


def test_every_command_has_help_with_a_summary() -> None:
    for path, command in _leaves(get_command(app)):
        shown = run(*path.split(), "--help")
        assert (shown.exit_code, bool(command.help)) == (0, True), path


def test_json_output_is_one_document(folder: Settings, publish_task: Callable[..., Manifest]) -> None:
    publish_task("a", 2)
    assert [task["name"] for task in json.loads(run("tasks", "list", "--json").output)] == ["a"]
    assert json.loads(run("tasks", "show", "a", "--json").output)["id"] == "tsk_a"
    assert json.loads(run("delete", "a-0", "-y", "--json").output)["deleted"] == ["a-0"]
    assert "tsk_a" in run("tasks", "list").output, "text output works again after JSON output"


def test_named_data_folder_overrides_the_url_of_the_environment(
    folder: Settings, publish_task: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_task("a", 1)
    monkeypatch.setenv("CINESTRATA_URL", "http://127.0.0.1:9")
    assert run("tasks", "list").exit_code == 1
    monkeypatch.delenv("CINESTRATA_DATA_DIR")
    listed = run("tasks", "list", "--json", "--data", folder.data_dir)
    assert [task["name"] for task in json.loads(listed.output)] == ["a"]
    named = run("tasks", "list", "--data", folder.data_dir, "--url", "http://127.0.0.1:9")
    assert named.exit_code == 1


def test_rejected_files_are_printed_with_their_reasons() -> None:
    stored = "upload://tsk_1"
    rejected = [
        RejectedVideo(id=f"v{n}", task_id="tsk_1", uri=f"{stored}/in {n}.mp4", reason="The file is empty.")
        for n in range(100)
    ]
    rejected[1] = rejected[1].model_copy(update={"reason": f"same content as {stored}/in 0.mp4"})
    task = task_details(
        name="my cats",
        method="strata",
        release=None,
        created_at=datetime.now(UTC),
        state="failed",
        error="None of the 120 videos can be used.",
        error_hint="Delete the task and repeat.",
        remedy=Action(name="delete_task", id="tsk_1"),
        counts=VideoCounts(videos=120, rejected=120),
        rejected=rejected,
        progress=TaskProgress(stage="probing"),
    )
    for shown in (task_table([task]),):
        output = io.StringIO()
        Console(file=output, width=200).print(shown)
        lines = output.getvalue().splitlines()
        assert lines[-9:] == [
            "my cats: None of the 120 videos can be used.",
            "rejected: in 0.mp4: The file is empty.",
            "rejected: in 1.mp4: same content as in 0.mp4",
            *(f"rejected: in {n}.mp4: The file is empty." for n in (2, 3, 4)),
            "115 more rejected videos: cinestrata api GET /videos task='my cats' status=rejected",
            "Delete the task and repeat.",
            "Run: cinestrata delete --task 'my cats'",
        ]
    output = io.StringIO()
    Console(file=output, width=200).print(task_table([task], show_ids=True))
    assert "rejected:" not in output.getvalue()
    append = task.model_copy(update={"into": "tsk_0", "name": "my cats (append tsk_1)"})
    assert [shown_name(task), shown_name(append)] == ["'my cats'", "tsk_1"]
    assert shown_name(task.model_copy(update={"name": "--yes"})) == "tsk_1"


def test_search_of_a_data_folder_asks_the_service_that_runs_on_it(folder: Settings) -> None:
    answer = search_answer(results=[search_result(captions=["a cat"])]).model_dump(mode="json")

    def search(request: BaseHTTPRequestHandler) -> None:
        body = json.dumps(answer).encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    with WebFiles() as web, hold_data_folder(folder.run_dir, folder.data_dir) as lock:
        web.files["/v1/readyz"] = b'{"ready": true}'
        web.files["/v1/access/current"] = b'{"kind": "anonymous", "name": "", "scope": "admin"}'
        web.handlers["/v1/search"] = search
        lock.write_record(url=web.url)
        outcome = run("search", "a cat", "--data", folder.data_dir)
        assert (outcome.exit_code, "a cat" in outcome.output) == (0, True), outcome.output
        answer["results"] = []
        empty = run("search", "a cat", "--data", folder.data_dir, "--json")
        assert (empty.exit_code, json.loads(empty.output)["results"]) == (3, [])
        del web.files["/v1/access/current"]  # the service needs a key that the environment does not have
        local = run("search", "a cat", "--data", folder.data_dir)
        assert (local.exit_code, "Run: cinestrata ingest FOLDER" in local.output) == (1, True), local.output


@pytest.mark.parametrize("name", get_args(ActionName))
def test_each_action_is_a_request_and_a_command(name: str) -> None:
    action = Action(name=name, id="tsk_1")
    assert re.match(r"(?:GET|POST|DELETE) /(?:tasks|releases|syncs)\b", action.request)
    words = action_command(action).split()
    assert run(*words[1:], "--help").exit_code == 0


def test_unknown_domain_of_a_search_is_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(message: str) -> SimpleNamespace:
        def search(*_: object, **__: object) -> None:
            raise InvalidInput.at("task", message)

        return SimpleNamespace(search=search)

    for message, status in (("There is no searchable task 'dogs'.", 1), ("At most 100 tasks.", 2)):
        monkeypatch.setattr("cli.commands.search_commands.connect", lambda *_, m=message, **__: refuse(m))
        assert run("search", "a cat", "--task", "dogs").exit_code == status


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
    "api GET /videos limit=0",
    "ingest . --into a --name b",
    "ingest . --set nothing",
    "sync . --every sometimes",
    "sync . --every 1h --dry-run",
    "upgrade",
    "upgrade street --all",
    "upgrade street --undo --accept",
    "snapshot",
    "snapshot --url http://127.0.0.1:9/ --index-only x.tar",
    "compact --url http://127.0.0.1:9/ --dry-run",
    "keys create k --scope root",
    "up --port 70000",
)
UNKNOWN_NAMES = (
    "search cat --task nosuch",
    "tasks show nosuch",
    "tasks retry nosuch",
    "relearn nosuch",
    "upgrade nosuch",
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
    outcomes = {call: run(*shlex.split(call)) for call in STATUSES[status]}
    wrong = {
        call: (result.exit_code, result.output)
        for call, result in outcomes.items()
        if result.exit_code != status
    }
    assert not wrong
    silent = [call for call, result in outcomes.items() if status and not result.output.strip()]
    assert not silent
