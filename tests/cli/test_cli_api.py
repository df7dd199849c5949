"""``cinestrata api``, ``keys``, ``users``, ``delete`` and ``compact``, stored snapshots and maintenance jobs."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from cinestrata_schemas.operations import JobDetails, JobSpec
from cinestrata_schemas.tasks import TaskDetails, TaskProgress
from cli.commands import maintenance_commands
from cli.commands.task_commands import follow
from cli.console import console
from cli.service_client import ServiceClient
from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from service.access.audit_log import Actor, record_event
from service.access.credentials import find_key
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.list_parameters import ShardFilters
from service.core.settings import Settings
from service.library.library_listing import list_shards
from service.operations import list_jobs, run_job
from service.tasks import broker
from tests.audited_changes import audit_entries
from tests.cli.invocation import Answers, problem, run, task_details

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


def test_request_over_http_has_the_fields(answers: Answers) -> None:
    requests = answers(lambda request: problem(404, "enough"))
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


def test_key_is_created_and_revoked(folder: Settings) -> None:
    created = run("keys", "create", "nightly", "--scope", "ingest", "--days", "30")
    assert created.exit_code == 0, created.output
    key = created.output.splitlines()[0]
    assert getattr(find_key(key), "scope", None) == "ingest"
    listed = run("api", "GET", "/keys").output
    assert (json.loads(listed)[0]["name"], key in listed) == ("nightly", False)
    assert run("api", "DELETE", "/keys/nightly").exit_code == 0
    assert find_key(key) is None
    assert {entry.actor_kind for entry in audit_entries()} == {"cli"}


def test_first_key_that_locks_out_administrators_is_reported(folder: Settings) -> None:
    warning = "no key or user has the scope admin"
    assert warning in run("keys", "create", "reader").output
    assert warning not in run("keys", "create", "root", "--scope", "admin").output
    assert warning not in run("keys", "create", "writer", "--scope", "ingest").output
    assert run("api", "DELETE", "/keys/root").exit_code == 0
    assert run("users", "create", "ada", "--scope", "admin", given="correct horse\n").exit_code == 0
    assert warning not in run("keys", "create", "other").output


def test_password_of_a_user_is_read_from_standard_input(folder: Settings) -> None:
    created = run("users", "create", "ada", "--scope", "admin", given="correct horse\n")
    assert created.exit_code == 0, created.output
    assert "correct horse" not in created.output
    assert run("users", "create", "ADA", given="correct horse\n").exit_code == 1
    assert "10 to 1024" in run("users", "create", "eve", given="short\n").output


@pytest.mark.slow
def test_videos_are_deleted_and_compaction_frees_their_space(
    folder: Settings, publish_task: Callable[..., Manifest]
) -> None:
    publish_task("a", 5)
    publish_task("b", 4)
    refused = run("delete", "a-1", given="n\n")
    assert refused.exit_code == 1
    assert ShardStore(folder.index_dir).manifest().tombstones == {}
    outcome = run("delete", "a-1", "a-2", "nobody", "--yes")
    assert (outcome.exit_code, "2 deleted" in outcome.output) == (0, True)
    looked = run("compact", "--dry-run")
    table = [line.split() for line in looked.output.splitlines()]
    assert [row[:5] for row in table[1:3]] == [["a", "5", "2", "40.0%", "1"], ["b", "4", "0", "0.0%", "1"]]
    assert ShardStore(folder.index_dir).manifest().tombstones != {}
    before = ShardStore(folder.index_dir).manifest().shards
    done = run("compact")
    assert re.search(r"a: 2 vectors dropped, \d+ bytes before, \d+ bytes now", done.output)
    assert "b:" not in done.output
    after = ShardStore(folder.index_dir).manifest()
    assert (after.tombstones, after.shards["tsk_a"].count, after.shards["tsk_b"]) == ({}, 3, before["tsk_b"])
    assert [(shard.count, shard.degraded) for shard in list_shards(ShardFilters()).shards] == [
        (3, None),
        (4, None),
    ]
    for video in range(4):
        run("delete", f"b-{video}", "--yes")
    assert run("compact", "b").exit_code == 0
    assert run("compact", "c").exit_code == 1


@pytest.mark.parametrize("arguments", [[], ["--yes"]])
def test_active_task_is_refused_before_the_prompt(
    folder: Settings, publish_task: Callable[..., Manifest], arguments: list[str]
) -> None:
    publish_task("a", 3)
    with session_scope(write=True) as session:
        session.get_one(Task, "tsk_a").state = "training"
    refused = run("delete", "--task", "a", *arguments, given="y\n")
    assert refused.exit_code == 1
    assert "Domain 'a' is training and cannot be deleted" in refused.output
    assert "cinestrata tasks cancel tsk_a" in refused.output
    assert "Permanently delete" not in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "nobody", "--yes"], "There is no task 'nobody'"),
        (["--yes"], "Give video IDs, or one domain"),
        (["a-1", "--task", "a", "--yes"], "Give video IDs, or one domain"),
    ],
)
def test_delete_requires_videos_or_one_task(
    folder: Settings, publish_task: Callable[..., Manifest], arguments: list[str], message: str
) -> None:
    publish_task("a", 3)
    outcome = run("delete", *arguments)
    status = 2 if message.startswith("Give") else 1
    assert (outcome.exit_code, message in outcome.output) == (status, True), outcome.output
    assert ShardStore(folder.index_dir).manifest().tombstones == {}


class _ClientWithWorker(ServiceClient):
    """A service whose worker runs a job as soon as it is started."""

    def lacks_workers(self) -> bool:
        return False

    def start_job(self, spec: JobSpec) -> JobDetails:
        job = super().start_job(spec)
        run_job(job.id)
        return job


@pytest.fixture
def remote(folder: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A data folder whose jobs run; ``--url`` leads to it."""
    monkeypatch.setattr(maintenance_commands, "connect", lambda *_: _ClientWithWorker(None))
    monkeypatch.setattr(broker, "send_maintenance", lambda _: True)
    return folder


@pytest.mark.slow
def test_snapshot_of_a_service_is_stored_and_downloaded(
    remote: Settings, publish_task: Callable[..., Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_task("a", 2)
    monkeypatch.chdir(tmp_path)
    written = run("snapshot", "--url", "http://service")
    assert written.exit_code == 0, written.output
    (stored,) = json.loads(run("api", "GET", "/snapshots").output)
    assert f"cinestrata api GET /snapshots/{stored['name']} --output" in " ".join(written.output.split())
    both = run("snapshot", "c.tar", "--url", "http://service", "--json")
    assert json.loads(both.output)["state"] == "done"
    assert (tmp_path / "c.tar").stat().st_size > 0
    with tarfile.open(tmp_path / "c.tar") as archive:
        assert archive.getnames()


@pytest.mark.slow
def test_failed_job_of_a_service_is_an_error(
    remote: Settings, publish_task: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_task("a", 2)
    compacted = run("compact", "a", "--url", "http://service", "--json")
    assert json.loads(compacted.output)["result"]["domains"] == 0
    assert "0 vectors dropped" in run("compact", "--url", "http://service").output
    remote.backups_dir.write_text("no folder")
    failed = run("snapshot", "--url", "http://service")
    assert (failed.exit_code, list_jobs(1)[0].state) == (1, "failed")
    assert f"Job {list_jobs(1)[0].id} failed: " in failed.output


def test_followed_tasks_print_a_line_per_change_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        ("queued", TaskProgress(stage="queued")),
        ("training", TaskProgress(stage="training", epoch=1, epochs=2, loss=9.0)),
        ("training", TaskProgress(stage="training", epoch=1, epochs=2, loss=3.0)),
        ("training", TaskProgress(stage="training", epoch=2, epochs=2)),
        ("ready", TaskProgress(stage="ready", fraction=1.0)),
    ]

    def task(_: str) -> TaskDetails:
        state, progress = steps.pop(0)
        return task_details(id="t", name="rooms", state=state, progress=progress)

    monkeypatch.setattr("time.sleep", lambda _: None)
    with console.capture() as capture:
        follow(SimpleNamespace(get_task=task, lacks_workers=lambda: False), ["t"])  # type: ignore[arg-type]
    shown = capture.get().splitlines()
    assert shown[:4] == ["rooms: queued", "rooms: training 1/2", "rooms: training 2/2", "rooms: ready"]
    assert "ready" in shown[-1]
    assert capture.get().endswith("\n")
