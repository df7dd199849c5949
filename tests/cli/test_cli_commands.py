"""Commands as a person types them: quick help, errors in words, manifests, and a doctor who looks closely."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import structlog
import typer
from rich.console import Console
from typer.testing import CliRunner

from cli.commands import process_commands
from cli.commands.ingest_command import default_name, pack_videos, parse_settings, read_videos
from cli.commands.search_commands import parse_conditions, result_table
from cli.demo.demo_world import DemoWorld
from cli.http_service_client import HttpServiceClient
from cli.main import app
from index.errors import DeviceMissing
from service.core.errors import InvalidInput
from service.core.schemas import MomentMatch, SearchResult, VideoSpec

COMMANDS = (
    "up",
    "serve",
    "worker",
    "migrate",
    "ingest",
    "search",
    "delete",
    "compact",
    "similar",
    "tasks",
    "demo",
    "bench",
    "doctor",
    "snapshot",
    "restore",
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from service.catalog.database import dispose
    from service.core.settings import settings

    for name in [name for name in os.environ if name.startswith("CINESTRATA_")]:
        monkeypatch.delenv(name)
    # Set, not only left out: commands set it for their children, and monkeypatch puts it back.
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(tmp_path / "data"))
    settings.cache_clear()
    yield
    dispose()
    settings.cache_clear()
    structlog.reset_defaults()


def cinestrata(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_help_lists_every_command() -> None:
    told = cinestrata("--help")
    assert told.exit_code == 0
    assert all(command in told.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    assert cinestrata(command, "--help").exit_code == 0


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom cli.main import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
        "sys.exit(', '.join({'torch', 'celery', 'fastapi', 'sqlalchemy', 'numpy'} & set(sys.modules)) or None)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stderr == ""


def test_what_is_missing_is_said_in_words(tmp_path: Path) -> None:
    told = cinestrata("ingest", tmp_path / "nothing.jsonl", "--url", "http://127.0.0.1:9")
    assert told.exit_code == 1
    assert "does not exist" in told.output


def test_a_service_that_is_down_is_said_in_words() -> None:
    told = cinestrata("tasks", "list", "--url", "http://127.0.0.1:9")
    assert told.exit_code == 1
    assert "does not answer" in told.output
    assert "Traceback" not in told.output


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINESTRATA_METHOD", "magic")
    told = cinestrata("tasks", "list")
    assert told.exit_code == 1
    assert "CINESTRATA_METHOD" in told.output


def test_a_setting_of_several_kinds_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINESTRATA_ROUTES", "0")
    monkeypatch.setenv("CINESTRATA_LIMITS__MAX_RESULTS", "0")
    told = cinestrata("tasks", "list")
    assert told.exit_code == 1
    assert [line.split(":")[0] for line in told.output.splitlines()[1:]] == [
        "CINESTRATA_ROUTES",
        "CINESTRATA_LIMITS__MAX_RESULTS",
    ]
    assert "'auto' or 'all', or: Input should be greater than or equal to 1" in told.output


def test_a_device_that_is_not_there_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise DeviceMissing("CINESTRATA_INDEX_DEVICE=cuda, but there is no GPU")

    monkeypatch.setattr("api.app.create_app", refuse)
    with pytest.raises(typer.Exit):
        process_commands.create_application()
    assert capsys.readouterr().err == "CINESTRATA_INDEX_DEVICE=cuda, but there is no GPU\n"


def test_nothing_is_opened_to_the_network_without_a_key() -> None:
    told = cinestrata("up", "--host", "0.0.0.0", "--port", 0)
    assert told.exit_code == 1
    assert "CINESTRATA_API_KEY" in told.output


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = cinestrata("up", "--port", port)
    assert told.exit_code == 1
    assert f"Port {port} on 127.0.0.1 is in use." in told.output
    assert not (tmp_path / "data" / "run" / "redis.log").exists()


def test_tasks_of_a_folder_are_listed_without_any_service() -> None:
    told = cinestrata("tasks", "list")
    assert told.exit_code == 0, told.output
    gone = cinestrata("tasks", "show", "tsk_nobody")
    assert gone.exit_code == 1
    assert "There is no task 'tsk_nobody'." in gone.output


def test_a_task_is_stored_and_cancelled_without_any_service(tmp_path: Path) -> None:
    films = tmp_path / "films"
    films.mkdir()
    (films / "a.mp4").write_bytes(b"looked at by a worker, later")
    posted = cinestrata("ingest", films, "--no-wait", "--set", "epochs=2")
    assert posted.exit_code == 0, posted.output
    (kept,) = (tmp_path / "data" / "media" / "uploads").rglob("*.mp4")
    assert kept.read_bytes() == b"looked at by a worker, later"
    task_id = posted.output.split("films: ")[1].split(",")[0]
    assert json.loads(cinestrata("tasks", "show", task_id).output)["settings"] == {"epochs": 2}
    again = cinestrata("ingest", films, "--no-wait")
    assert again.exit_code == 1
    assert "films" in again.output
    assert "cancelled" in cinestrata("tasks", "cancel", task_id).output
    assert "queued" in cinestrata("tasks", "retry", task_id).output


def test_an_empty_folder_is_well() -> None:
    told = cinestrata("doctor")
    assert told.exit_code == 0, told.output
    assert "failed" not in told.output


def test_problems_come_back_with_their_fields() -> None:
    problem = {
        "title": "Invalid input",
        "detail": "k: too large",
        "errors": [{"field": "k", "message": "too large"}],
    }
    transport = httpx.MockTransport(lambda _: httpx.Response(422, json=problem))
    client = HttpServiceClient("http://service", transport=transport)
    with pytest.raises(InvalidInput, match="k: too large") as told:
        client.search("x", 10**6, None, None)
    assert told.value.errors[0].field == "k"


def test_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINESTRATA_API_KEY", "secret")
    requests: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json=[])

    HttpServiceClient("http://service", transport=httpx.MockTransport(respond)).tasks()
    assert [request.headers["X-API-Key"] for request in requests] == ["secret"]


def test_a_folder_without_manifest_brings_its_videos_without_captions(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.mp4", "deep/a.MKV", "notes.txt"):
        (tmp_path / name).touch()
    base, videos = read_videos(tmp_path)
    assert base == tmp_path
    assert [(video.uri, video.captions) for video in videos] == [("b.mp4", []), ("deep/a.MKV", [])]


def test_a_manifest_in_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.csv").write_text("uri,captions,split\na.mp4,one|two,test\n")
    _, (video,) = read_videos(tmp_path)
    assert (video.uri, video.captions, video.split) == ("a.mp4", ["one", "two"], "test")


def test_packing_keeps_bytes_captions_and_splits_and_drops_paths(tmp_path: Path) -> None:
    outside = tmp_path / "a b.mp4"
    outside.write_bytes(b"video")
    videos = [VideoSpec(uri="../a b.mp4", captions=["x"], split="test")]
    archive = io.BytesIO()
    pack_videos(archive, videos, {"../a b.mp4": outside})
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        assert tar.getnames() == ["manifest.jsonl", "000000.mp4"]
        manifest, video = (tar.extractfile(name) for name in tar.getnames())
        assert manifest is not None
        assert video is not None
        assert video.read() == b"video"
        assert json.loads(manifest.read()) == {"uri": "000000.mp4", "captions": ["x"], "split": "test"}


def test_two_names_of_one_file_are_packed_as_two_files(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"video")
    os.link(tmp_path / "a.mp4", tmp_path / "b.mp4")
    names = ["a.mp4", "b.mp4"]
    archive = io.BytesIO()
    pack_videos(archive, [VideoSpec(uri=name) for name in names], {name: tmp_path / name for name in names})
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        assert [(member.isreg(), member.size) for member in tar.getmembers()[1:]] == [(True, 5), (True, 5)]


def test_a_wrong_name_of_a_task_is_not_taken_for_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"video")
    told = cinestrata("ingest", tmp_path, "--name", "day/night", "--in-place")
    assert told.exit_code == 1
    assert "name: " in told.output
    assert "environment" not in told.output


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("films/manifest.jsonl", "films"),
        ("my clips.tar.gz", "my clips"),
        ("öl/süß.csv", "s-"),
        ("films", "films"),
    ],
)
def test_tasks_are_named_after_what_was_given(tmp_path: Path, path: str, name: str) -> None:
    assert default_name(tmp_path / path) == name


def test_settings_are_values_not_words() -> None:
    assert parse_settings(["epochs=5", "scale=1.5", "gate=true", "mode=fast"]) == {
        "epochs": 5,
        "scale": 1.5,
        "gate": True,
        "mode": "fast",
    }
    assert parse_settings([]) is None
    with pytest.raises(typer.Exit):
        parse_settings(["epochs"])


def test_a_changed_world_is_another_request() -> None:
    from service.core.schemas import TaskSpec

    spec = TaskSpec(name="a", videos=[VideoSpec(uri="1.mp4")])
    other = TaskSpec(name="a", videos=[VideoSpec(uri="2.mp4")])
    assert (
        DemoWorld.idempotency_key(spec)
        == DemoWorld.idempotency_key(spec.model_copy())
        != DemoWorld.idempotency_key(other)
    )


def test_the_demo_is_as_large_as_promised() -> None:
    world = DemoWorld()
    assert (world.train, world.test, world.categories, len(world.domains)) == (16, 40, 3, 3)
    assert world.resized(domains=2, test=2).video_count == 2 * 3 * (16 + 4 + 2)


def test_conditions_as_a_person_types_them() -> None:
    written = [
        "place=Zürich",
        "camera>=2",
        "camera<=4.5",
        "live=true",
        "code=007",
        'tags={"all": ["a", "b"]}',
        "x=a=b",
    ]
    assert parse_conditions(written) == {
        "place": "Zürich",
        "camera": {"min": 2, "max": 4.5},
        "live": True,
        "code": "007",
        "tags": {"all": ["a", "b"]},
        "x": "a=b",
    }
    for wrong in (["place"], ["=x"], ["a=1", "a=2"], ["a>=1", "a>=2"], ["a=1", "a>=0"]):
        with pytest.raises(InvalidInput) as told:
            parse_conditions(wrong)
        assert [error.field for error in told.value.errors] == ["where"]


def test_a_filtered_search_goes_out_as_the_service_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(422, json={"title": "Invalid input", "detail": "enough"})

    transport = httpx.MockTransport(answer)
    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **how: client(**{**how, "transport": transport}))
    told = cinestrata(
        *("search", "owl", "--task", "birds", "--task", "sea", "--where", "camera>=2", "--max-duration", 5),
        *("--after", "2026-01-02", "--url", "http://127.0.0.1:9"),
    )
    assert "enough" in told.output
    parameters = asked[0].url.params
    assert parameters.get_list("task") == ["birds", "sea"]
    assert json.loads(parameters["where"]) == {"camera": {"min": 2}}
    assert (parameters["max_duration"], parameters["arrived_after"]) == ("5.0", "2026-01-02T00:00:00")
    assert "min_duration" not in parameters


def test_every_cell_of_the_results_stands_under_its_heading() -> None:
    shown = {
        "task": "cars",
        "task_id": "t",
        "score": 0.5,
        "captions": ["a taxi"],
        "thumbnail_url": "",
        "stream_url": "",
    }
    moment = MomentMatch(start=40, end=60, score=0.5)
    for confidence in (None, 0.5):
        for moments in ([], [moment]):
            more = {"confidence": confidence, "moments": moments}
            result = SearchResult.model_validate({"rank": 1, "video_id": "v1", **shown, **more})
            table = result_table(SimpleNamespace(results=[result]))  # type: ignore[arg-type]
            cells = {str(column.header): next(iter(column.cells)) for column in table.columns}
            expected = {"": "1", "score": "0.500", "task": "cars", "video": "v1", "caption": "a taxi"}
            expected |= {"confidence": "50%"} if confidence else {}
            expected |= {"best moment": "0:40–1:00"} if moments else {}
            assert cells == expected


def test_brackets_in_a_caption_are_shown_as_they_are() -> None:
    shown = {"task": "cars", "task_id": "t", "thumbnail_url": "", "stream_url": ""}
    caption = "a sign [/exit] and [red]lights"
    result = SearchResult.model_validate(
        {"rank": 1, "video_id": "v1", "score": 0.5, "captions": [caption], **shown}
    )
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(result_table(SimpleNamespace(results=[result])))  # type: ignore[arg-type]
    assert caption in console.export_text()
