"""Folders with files of systems, downloads, links and side files that cannot be read, as commands ingest them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result

from cli.commands import sync_command
from cli.commands.video_sources import default_name
from tests.cli.invocation import run

pytestmark = pytest.mark.usefixtures("folder")
TABLE = "file,caption\nclip.mp4,a dog\n"


def fill(folder: Path, *names: str, **texts: str | bytes) -> Path:
    """Write a file for each name, and texts for names whose dots are double underscores."""
    contents = {name: name.encode() for name in names} | {
        name.replace("__", "."): text.encode() if isinstance(text, str) else text
        for name, text in texts.items()
    }
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def ingest(folder: Path, *options: str) -> tuple[Result, dict[str, list[str]]]:
    """Ingest a folder, and return the captions of the stored videos by path."""
    outcome = run("ingest", folder, "--no-wait", *options)
    listed = run("api", "GET", "/videos", "limit=1000")
    return outcome, {
        video["uri"].split("/", 3)[-1]: video["captions"] for video in json.loads(listed.stdout)["videos"]
    }


def said(outcome: Result) -> str:
    return " ".join(outcome.output.split())


JUNK = (
    *("@eaDir/clip.mp4/SYNOPHOTO_FILM_M.mp4", "#recycle/old.mp4", ".Trash-1000/files/t.mp4", "._clip.mp4"),
    *("$Recycle.Bin/S-1-5-21-1/x.mp4", "System Volume Information/x.mp4", "@Recycle/x.mp4"),
    *("@Recently-Snapshot/GMT_01/x.mp4", ".@__thumb/x.mp4", "lost+found/x.mp4", ".Trashes/501/x.mp4"),
    *("__MACOSX/x.mp4", "a/@EADIR/x.mp4", "#snapshot/x.mp4"),
)
PARTIAL = (
    *("clip.f137.mp4", "clip.temp.mp4", "Talk [dQw4w9WgXcQ].f251.webm", "a [x].f137-1.mp4"),
    *("clip.mp4.part", "clip.f137.mp4.part-Frag12", "movie.mkv.crdownload", "movie.mp4.!qB", "a.partial"),
    "a.fhls-1080p.mp4",
)
NOT_VIDEOS = (".movie.mp4.Xa81Fq", "movie.mp4.tmp", "movie.mp4~", ".DS_Store", ".git/config")
ORDINARY = (
    *("#1 goal.mp4", "#recycled art/bin.mp4", "@home/kitchen.mp4", "$100 bet.mp4", "__intro__.mp4"),
    *("recycle/plant.mp4", "Trash talk/a.mp4", "eaDir/b.mp4", "_._.mp4", "lost and found/c.mp4"),
    *("f137.mp4", "temp.mp4", "The.F1.Race.mp4", "shot.f2.8.mp4", "My temp.mp4", "body.temperature.mp4"),
    *("Formula.f1.mp4", "render.final.mp4", "part.mp4", "clip.part2.mp4", "Hallows.Part.1.mp4"),
)


@pytest.mark.parametrize(
    "table", [{}, {"captions__csv": TABLE, "@eaDir/captions__csv": TABLE + "clip.mp4,x\n"}]
)
def test_files_of_systems_and_running_downloads_are_left_out_and_named(
    tmp_path: Path, table: dict[str, str]
) -> None:
    source = fill(tmp_path / "n", "clip.mp4", *JUNK, *PARTIAL, *NOT_VIDEOS, *ORDINARY, **table)
    outcome, videos = ingest(source)
    assert (outcome.exit_code, {*videos}) == (0, {"clip.mp4", *ORDINARY})
    assert videos["clip.mp4"] == (["a dog"] if table else [])
    assert "10 system files or folders are left out: #recycle/, #snapshot/, $Recycle.Bin/" in said(outcome)
    assert "4 hidden files or folders are left out: .@__thumb/, .Trash-1000/, .Trashes/, ._clip.mp4." in said(
        outcome
    )
    assert "10 partly downloaded files or folders are left out: " in said(outcome)
    assert ".git" not in said(outcome)


def link(folder: Path, **targets: Path | str) -> None:
    for name, target in targets.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    clips = fill(tmp_path / "e", "b.mp4", "deep/c.mp4")
    source = fill(tmp_path / "d", "a.mp4", "2023/d.mp4")
    link(source, first=clips / "deep", latest="2023", m1=clips, m2=clips, self=".", sub__up="..", z=tmp_path)
    link(clips, back=source)
    link(source, **{".hidden": clips, "@eaDir": clips})
    outcome, videos = ingest(source)
    assert (outcome.exit_code, {*videos}) == (0, {"a.mp4", "2023/d.mp4", "first/c.mp4", "m1/b.mp4"})
    assert "7 repeated or circular files or folders are left out: latest/, m1/deep/, m2/, " in said(outcome)


def test_broken_links_are_named_and_stop_nothing(tmp_path: Path) -> None:
    source = fill(tmp_path / "d", "a.mp4")
    link(
        source,
        **{"films": "/gone/films", "z.mp4": "/gone/z.mp4", "docs": fill(tmp_path / "docs", "readme.txt")},
    )
    outcome, videos = ingest(source)
    assert (outcome.exit_code, {*videos}) == (3, {"a.mp4"})
    assert "left out: films/: It is a link to a missing folder." in said(outcome)
    assert "left out: z.mp4: It is a link to a missing file." in said(outcome)
    dry = run("sync", source, "--dry-run")
    assert (dry.exit_code, "1 new" in said(dry), "left out: films/" in said(dry)) == (0, True, True)


SIDE_FILES: dict[str, str | bytes] = {
    "a__srt": b"\xff\xfe1",
    "b__txt": "a boat\n\0",
    "c__info__json": "{",
    "d__txt": "x" * 100_000,
    "e__json": "[1]",
    "table__csv": 'file,caption\na.mp4,wrong\nb.mp4,"a\0b"\n',
    "clips__json": '{"cap": "a"}',
}


def messy(folder: Path) -> Path:
    fill(folder, *(f"{name}.mp4" for name in "abcdef"), **SIDE_FILES)
    return fill(folder, f__txt="a train", captions__csv="file,caption\na.mp4,a dog\n")


CAPTIONS = {f"{name}.mp4": [] for name in "bcde"} | {"a.mp4": ["a dog"], "f.mp4": ["a train"]}
NAMED = [name.replace("__", ".") for name in SIDE_FILES]


def test_side_files_that_cannot_be_read_are_named_and_videos_are_ingested(tmp_path: Path) -> None:
    outcome, videos = ingest(messy(tmp_path / "n"))
    assert (outcome.exit_code, videos) == (3, CAPTIONS)
    for name in NAMED:
        assert f"left out: {name}: " in said(outcome)
    assert "left out: b.txt: line 2: The line contains a NUL byte." in said(outcome)
    assert "left out: d.txt: captions[0]: The caption has 100000 characters." in said(outcome)


def test_strict_commands_add_nothing(tmp_path: Path) -> None:
    source = messy(tmp_path / "n")
    for command in ("ingest", "sync"):
        outcome = run(command, source, "--strict")
        assert outcome.exit_code == 2
        for name in NAMED:
            assert name in said(outcome)
    assert json.loads(run("tasks", "list", "--json").stdout) == []
    for name in NAMED:
        (source / name).unlink()
    assert run("ingest", source, "--strict", "--no-wait").exit_code == 0


def test_sync_adds_the_usable_videos_and_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker runs here."""
    monkeypatch.setattr(sync_command, "follow", lambda *_: [SimpleNamespace(state="ready")])
    outcome = run("sync", messy(tmp_path / "n"))
    assert outcome.exit_code == 3
    assert "n: 6 new, 0 changed" in said(outcome)
    for name in NAMED:
        assert f"left out: {name}: " in said(outcome)


@pytest.mark.parametrize("name", ["manifest.csv", "named.csv"])
def test_manifest_that_cannot_be_read_stops(tmp_path: Path, name: str) -> None:
    source = fill(tmp_path / "n", "a.mp4", **{name: 'file,caption\na.mp4,x\nb.mp4,"a\0b"\n'})
    outcome, videos = ingest(source if name == "manifest.csv" else source / name)
    assert (outcome.exit_code, videos) == (2, {})
    assert f"{name}:3" in said(outcome)


FOLDERS = (
    *("2024.05.01", "v1.2 clips", "S01E02.The.Name", "The.Office.S01E02.1080p.WEB-DL.x264", "10.0.0.5"),
    *("100.MEDIA", "St. Louis", "cam.mp4.d", "clips.zip", ".cache2", "Vol. 1.", "a..b"),
)


@pytest.mark.parametrize("name", FOLDERS)
def test_domain_has_the_whole_name_of_its_folder(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    assert default_name(".") == default_name(f"../{name}/") == name
    assert default_name(f"s3://bucket/{name}") == (name if name != "clips.zip" else "clips")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("holiday.2024.zip", "holiday.2024"),
        ("set.v1.tar.gz", "set.v1"),
        ("captions.v2.csv", "captions.v2"),
        ("v1.2/manifest.jsonl", "v1.2"),
        ("S01E02.The.Name.mp4", "S01E02.The.Name"),
    ],
)
def test_only_the_ending_of_a_file_is_removed_from_its_name(tmp_path: Path, file: str, name: str) -> None:
    assert default_name(fill(tmp_path, file) / file) == name
    assert default_name(f"s3://bucket/{file}") == name


def test_logs_and_albums_in_a_folder_are_no_failure(tmp_path: Path) -> None:
    telemetry = "".join(f"FrameCnt: {n}, DiffTime: {n % 3 + 32}ms, [latitude: 4{n / 7}]\n" for n in range(99))
    files: dict[str, str | bytes] = {
        "metadata__json": '{"title": "Summer", "description": "By the sea", "date": {"timestamp": "1"}}',
        "b/comments__json": "[]",
        "flight__csv": "time(ms),latitude,isVideo\n0,48.1,1\n",
        "clip__txt": telemetry,
        "clip2__txt": b"\xff\0\xfe" * 9,
    }
    source = fill(tmp_path / "n", "clip.mp4", "clip2.mp4", **files)
    for options in ((), ("--strict",)):
        outcome = run("sync", source, "--dry-run", *options)
        assert (outcome.exit_code, "left out" in said(outcome)) == (0, False)
    ingested, videos = ingest(source)
    assert (ingested.exit_code, videos) == (0, {"clip.mp4": [], "clip2.mp4": []})
    for name in files:
        assert f"{name.replace('__', '.')} is not used: " in said(ingested)


def test_missing_file_is_named_with_the_row_that_names_it(tmp_path: Path) -> None:
    rows = TABLE + "gone.mp4,a cat\n"
    outcome = run("sync", fill(tmp_path / "n", "clip.mp4", captions__csv=rows), "--dry-run")
    named = "Add it, or correct the row that names it: captions.csv:3."
    assert f"left out: gone.mp4: The file does not exist. {named}" in said(outcome)


def test_hidden_folder_is_ingested_if_the_command_names_it(tmp_path: Path) -> None:
    for name in (".videos", "#recycle", ".cache/hub/clips"):
        assert run("ingest", fill(tmp_path / name, "a.mp4"), "--no-wait").exit_code == 0


def test_row_of_a_table_names_a_hidden_video_but_no_file_of_a_system(tmp_path: Path) -> None:
    rows = TABLE + ".old/b.mp4,a cat\n@eaDir/clip.mp4,a thumbnail\n"
    source = fill(
        tmp_path / "n", "clip.mp4", ".old/b.mp4", ".old/c.mp4", "@eaDir/clip.mp4", captions__csv=rows
    )
    outcome, videos = ingest(source)
    assert (outcome.exit_code, videos) == (0, {"clip.mp4": ["a dog"], ".old/b.mp4": ["a cat"]})
    assert "1 row has no file in the folder and is left out: @eaDir/clip.mp4." in said(outcome)


def test_folder_with_hidden_videos_only_says_so(tmp_path: Path) -> None:
    outcome, _ = ingest(fill(tmp_path / "n", "@eaDir/a.mp4", "._b.mp4"))
    assert outcome.exit_code == 2
    assert "The folder has only system files and hidden files." in said(outcome)


def test_linked_folder_and_its_name_are_what_the_command_names(tmp_path: Path) -> None:
    link(tmp_path, lib2=fill(tmp_path / "e", "b.mp4"))
    fill(tmp_path, "blobs/3f2a9c")
    link(tmp_path, snap__x=tmp_path / "blobs/3f2a9c")
    (tmp_path / "snap/x").rename(tmp_path / "snap/x.mp4")
    for name in ("lib2", "snap"):
        outcome, _ = ingest(tmp_path / name)
        assert outcome.exit_code == 0
        assert f"{name}: tsk_" in outcome.output
        assert "left out" not in outcome.output
