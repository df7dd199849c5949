"""Commands of the command line: error messages, ingestion of manifests and folders, result tables, notices."""

from __future__ import annotations

import io
import json
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import typer
from rich.text import Text
from sqlalchemy import update

from cinestrata_schemas.search import MomentMatch
from cinestrata_schemas.tasks import VideoSpec
from cli.commands.search_commands import parse_conditions, result_table
from cli.commands.task_commands import follow
from cli.commands.video_sources import pack_videos
from cli.console import video_cell
from cli.options import parse_settings
from cli.service_client import connect
from service.catalog import readings
from service.catalog.database import session_scope
from service.catalog.leases import report_worker
from service.catalog.tables import Video
from service.core.errors import InvalidInput
from service.reading import reading_commands
from tests.catalog_rows import mark_learned
from tests.cli.invocation import Answers, problem, run, search_answer, search_result


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from service.catalog.database import dispose
    from service.core.settings import settings

    for name in [name for name in os.environ if name.startswith("CINESTRATA_")]:
        monkeypatch.delenv(name)
    # Set explicitly, because commands set it for their children and monkeypatch restores it.
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(tmp_path / "data"))
    settings.cache_clear()
    yield
    dispose()
    settings.cache_clear()
    structlog.reset_defaults()


def test_invalid_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINESTRATA_METHOD", "magic")
    outcome = run("tasks", "list")
    assert outcome.exit_code == 1
    assert "CINESTRATA_METHOD" in outcome.output


def test_port_in_use_is_reported_before_start(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = run("up", "--port", port)
    assert outcome.exit_code == 1
    assert f"Port {port} on 127.0.0.1 is in use." in outcome.output
    assert not (tmp_path / "data" / "run" / "redis.log").exists()


@pytest.mark.slow
def test_unknown_backbone_is_reported_before_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINESTRATA_BACKBONE", "open_clip:ViT-B-32/missing.pt")
    outcome = run("up", "--port", 0)
    assert outcome.exit_code == 1
    assert "CINESTRATA_BACKBONE: backbone 'open_clip:ViT-B-32/missing.pt'" in outcome.output
    assert not (tmp_path / "data" / "run").exists()


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A folder with a file that a worker would look at."""
    folder = tmp_path / "films"
    folder.mkdir()
    (folder / "a.mp4").write_bytes(b"looked at by a worker, later")
    return folder


def test_task_is_created_and_cancelled_without_a_service(films: Path, tmp_path: Path) -> None:
    posted = run("ingest", films, "--no-wait", "--set", "epochs=2")
    assert posted.exit_code == 0, posted.output
    (kept,) = (tmp_path / "data" / "media" / "uploads").rglob("*.mp4")
    assert kept.read_bytes() == b"looked at by a worker, later"
    task_id = posted.output.split("films: ")[1].split(",")[0]
    assert json.loads(run("tasks", "show", "films", "--json").output)["settings"] == {"epochs": 2}
    again = run("ingest", films, "--no-wait")
    assert again.exit_code == 1
    assert "films" in again.output
    assert "cancelled" in run("tasks", "cancel", "Films").output
    assert "cinestrata up" in posted.stderr
    again = run("tasks", "retry", task_id)
    assert "queued" in again.output
    assert "cinestrata up" in again.stderr


def test_reading_is_chosen_started_and_cancelled(films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("ingest", films, "--no-wait", "--read", "telepathy").exit_code == 2
    assert run("ingest", films, "--no-wait", "--read", "off").exit_code == 0
    assert run("read", "films").exit_code == 1  # not ready
    task = json.loads(run("tasks", "show", "films", "--json").output)
    assert task["read"] == "off"
    mark_learned(task["id"])
    with session_scope(write=True) as session:
        session.execute(update(Video).values(status="accepted"))
    assert "read is off" in run("read", "films").output
    problems = {"speech": "the package is not installed", "screen": None}
    for module in (readings, reading_commands):
        monkeypatch.setattr(module, "available_sources", lambda _: problems)
    started = run("read", "films", "--read", "speech,screen")
    assert "0 of 1 videos are read" in started.output
    assert "speech is not read: the package is not installed" in started.output
    assert "ready, reading 0 of 1" in run("tasks", "show", "films").output
    assert run("read", "films", "--cancel", "--retry").exit_code == 2
    assert "0 of 0 videos are read" in run("read", "films", "--cancel").output


def test_waiting_ends_with_advice_if_no_service_runs(films: Path, tmp_path: Path) -> None:
    data = tmp_path / "my data"
    for call in (("ingest", films), ("sync", films, "--name", "other")):
        outcome = run(*call, "--data", data)
        assert outcome.exit_code == 1, outcome.output
        assert f"cinestrata up --data '{data}'" in outcome.stderr
    states = {
        task["name"]: task["state"]
        for task in json.loads(run("tasks", "list", "--json", "--data", data).stdout)
    }
    assert states == {"films": "queued", "other": "queued"}


def test_waiting_goes_on_while_workers_report(films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("ingest", films, "--no-wait").exit_code == 0
    with session_scope(write=True) as session:
        report_worker(session, None)
    pauses = iter(range(3))

    def pause(_: float) -> None:
        if next(pauses, None) is None:
            assert run("tasks", "cancel", "films").exit_code == 0

    monkeypatch.setattr("time.sleep", pause)
    (task,) = connect(None, None).list_tasks()
    assert follow(connect(None, None), [task.id])[0].state == "cancelled"


def test_all_missing_files_are_listed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "3.mp4").write_bytes(b"video")
    (source / "manifest.csv").write_text("file\n" + "".join(f"{number}.mp4\n" for number in range(25)))
    outcome = run("ingest", source)
    assert outcome.exit_code == 1
    assert "24 files do not exist" in outcome.output
    assert "20.mp4 and 4 more" in outcome.output
    assert "remove their rows" in outcome.output


@pytest.mark.parametrize("option", [("--encoding", "cp1252"), ("--captions-from-names",)])
def test_options_of_manifests_are_refused_with_archives(tmp_path: Path, option: tuple[str, ...]) -> None:
    (tmp_path / "a.zip").touch()
    outcome = run("ingest", tmp_path / "a.zip", *option)
    assert outcome.exit_code == 2
    assert "cannot be combined with an archive" in outcome.output


def test_packed_videos_with_equal_names_are_numbered(tmp_path: Path) -> None:
    names = ["x/a.mp4", "../x/a.mp4", "/y/a.mp4", "X/A.mp4", "manifest.jsonl"]
    files = {name: tmp_path / str(number) for number, name in enumerate(names)}
    for file in files.values():
        file.write_bytes(b"video")
    archive = io.BytesIO()
    pack_videos(archive, [VideoSpec(uri=name) for name in names], files)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        manifest, *videos = tar.getnames()
        stored = tar.extractfile(manifest)
        assert stored is not None
        assert [json.loads(line)["uri"] for line in stored.read().splitlines()] == videos
    assert videos == ["x/a.mp4", "x (2)/a.mp4", "y/a.mp4", "X (3)/A.mp4", "manifest (2).jsonl"]


def test_settings_are_parsed_as_json() -> None:
    settings = {"epochs": 5, "scale": 1.5, "gate": True, "mode": "fast"}
    assert parse_settings(["epochs=5", "scale=1.5", "gate=true", "mode=fast"]) == settings
    assert parse_settings([]) is None
    with pytest.raises(typer.Exit):
        parse_settings(["epochs"])


def test_conditions_are_parsed() -> None:
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
        with pytest.raises(InvalidInput) as outcome:
            parse_conditions(wrong)
        assert [error.field for error in outcome.value.errors] == ["where"]


def test_filters_are_sent_as_query_parameters(answers: Answers) -> None:
    requests = answers(lambda _: problem(422, "enough"))
    outcome = run(
        *("search", "owl", "--task", "birds", "--task", "sea", "--where", "camera>=2", "--max-duration", 5),
        *("--after", "2026-01-02", "--url", "http://127.0.0.1:9"),
    )
    assert "enough" in outcome.output
    parameters = requests[0].url.params
    assert parameters.get_list("task") == ["birds", "sea"]
    assert json.loads(parameters["where"]) == {"camera": {"min": 2}}
    assert (parameters["max_duration"], parameters["arrived_after"]) == ("5.0", "2026-01-02T00:00:00")
    assert "min_duration" not in parameters


def test_result_columns_match_their_headings() -> None:
    moment = MomentMatch(start=40, end=60, score=0.5)
    for confidence in (None, 0.5):
        for moments in ([], [moment]):
            result = search_result(uri="upload://t/north/taxi 1.mp4", confidence=confidence, moments=moments)
            table = result_table(search_answer(results=[result]))
            cells = {str(column.header): str(next(iter(column.cells))) for column in table.columns}
            expected = {"": "1", "score": "0.500", "domain": "cars", "caption": "a taxi"}
            expected["video"] = "v1\nnorth/taxi 1.mp4"
            expected |= {"match": "likely"} if confidence else {}
            expected |= {"best moment": "0:40–1:00"} if moments else {}
            assert cells == expected


@pytest.mark.parametrize(
    ("words", "cell", "emphasized"),
    [
        ([], "a taxi", []),
        ([{"kind": "caption", "text": "[red] taxis", "marks": [(6, 11)]}], "[red] taxis", ["taxis"]),
        (
            [{"kind": "metadata", "field": "place", "text": "Köln", "marks": [(0, 4)]}],
            "place: Köln",
            ["Köln"],
        ),
        (
            [{"kind": "name", "text": "red taxi", "marks": [(0, 3), (4, 8)]}] * 2,
            "file name: red taxi",
            ["red", "taxi"],
        ),
        (
            [{"kind": "subtitle", "text": "𝔞 taxi", "marks": [(2, 6)]}],
            "𝔞 taxi",
            ["taxi"],
        ),  # of a newer service
    ],
)
def test_matched_text_replaces_the_caption(words: list[Any], cell: str, emphasized: list[str]) -> None:
    (*_, captions) = result_table(search_answer(results=[search_result(words=words)])).columns
    (text,) = captions.cells
    assert isinstance(text, Text)
    assert text.plain == cell
    assert [
        text.plain[span.start : span.end] for span in text.spans if "bold" in str(span.style)
    ] == emphasized


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("north/taxi 1.mp4", "taxi 1.mp4"),
        ("/data/clips/taxi.mp4", "taxi.mp4"),
        ("upload://tsk_1/north/what?.mp4", "north/what?.mp4"),
        ("upload://tsk_1/v1.mp4", ""),
        ("s3://bucket/north/taxi%201.mp4", "taxi%201.mp4"),
        ("https://media.example.com/north/taxi%201.mp4?***", "taxi 1.mp4"),
        ("https://***@media.example.com/taxi.mp4", "taxi.mp4"),
        ("north/v1.mp4", ""),  # the ID tells it
    ],
)
def test_video_cell_has_id_and_file_name(uri: str, name: str) -> None:
    assert str(video_cell("v1", uri)) == (f"v1\n{name}" if name else "v1")


OUTAGE = datetime(2026, 11, 23, 7, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize("results", ["some", "none"])
@pytest.mark.parametrize("time", [OUTAGE, None])
def test_results_of_a_copy_of_the_catalog_have_its_time(
    time: datetime | None, results: str, answers: Answers
) -> None:
    answer = search_answer(metadata_as_of=time, **({"results": []} if results == "none" else {}))
    body = answer.model_dump(mode="json")
    answers(lambda _: httpx.Response(200, json=body))

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
        (
            None,
            (),
            "The library has too few captions to tell which videos match. Add captions to more videos",
        ),
        (None, ("--mode", "latest"), None),
    ],
)
def test_correction_and_number_of_matches_are_shown(
    matching: int | None, options: tuple[str, ...], line: str | None, answers: Answers
) -> None:
    corrected = "a taxi" if matching else None
    matches = None if matching is None else True
    body = search_answer(matches=matches, matching=matching, corrected=corrected).model_dump(mode="json")
    answers(lambda _: httpx.Response(200, json=body))
    outcome = run("search", "a taxy", "--url", "http://127.0.0.1:9", *options)
    assert outcome.exit_code == 0
    output = " ".join(outcome.output.split())
    assert ("Searched for: a taxi" in output) is (corrected is not None)
    assert ("match." in output or "matches." in output or "too few captions" in output) is (line is not None)
    assert line is None or line in output
