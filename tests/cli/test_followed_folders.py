"""Folders that a person renames, moves, edits and restores, as ``cinestrata sync`` follows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.commands import sync_command
from service.catalog.database import now, session_scope
from service.catalog.tables import Feedback
from service.core.settings import Settings
from service.library.library_listing import get_video, stream_path
from service.tasks import broker
from tests.cli.invocation import run
from tests.service.syncs.finished_tasks import finish

NO_OPTIONS: dict[str, Any] = dict.fromkeys(
    ("in_place", "captions_from_names", "compare_contents", "yes", "strict"), False
) | dict.fromkeys(("name", "encoding", "read", "url", "data"))
SUBTITLE = "1\n00:00:01,000 --> 00:00:02,000\nthe {} hums\n"


@pytest.fixture(autouse=True)
def finished(folder: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are finished without workers and without decoding."""

    def follow(client: Any, tasks: Sequence[str]) -> list[Any]:
        finish()
        return [client.get_task(task) for task in tasks]

    monkeypatch.setattr(sync_command, "follow", follow)
    monkeypatch.setattr(broker, "send_probe", lambda task: True)


@pytest.fixture(params=["uploaded", "in place"])
def place(request: pytest.FixtureRequest, folder: Settings, tmp_path: Path) -> Path:
    """A folder that the service cannot read, so that files are uploaded; or one below the media root."""
    root = tmp_path / "client" if request.param == "uploaded" else folder.media_root
    root.mkdir(exist_ok=True)
    return root


def write(folder: Path, **files: str) -> Path:
    """Write files with these contents; a double underscore is a dot, and a triple one a slash."""
    for name, content in files.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def sync(folder: Path, *options: str, status: int = 0) -> dict[str, Any]:
    outcome = run("sync", folder, "--json", *options)
    assert outcome.exit_code == status, outcome.output
    return json.loads(outcome.stdout) if outcome.stdout else {"said": outcome.stderr}


def videos(domain: str) -> dict[str, dict[str, Any]]:
    """Return a domain's accepted videos by the content of their files, each under its name."""
    listed = json.loads(run("api", "GET", "/videos", f"task={domain}").stdout)["videos"]
    stored = {}
    for video in listed:
        if video["status"] == "accepted":
            path = stream_path(video["id"])
            stored[path.read_text()] = video | {"name": path.name}
    assert len(stored) == sum(video["status"] == "accepted" for video in listed)
    return stored


def names(domain: str) -> dict[str, str]:
    return {content: video["name"] for content, video in videos(domain).items()}


def note(video: str, text: str) -> None:
    """Write a caption."""
    assert run("api", "PATCH", f"/videos/{video}", f"captions={json.dumps([text])}").exit_code == 0


def test_new_version_of_a_file_keeps_what_people_wrote(place: Path) -> None:
    folder = write(place / "s", a__mp4="A", b__mp4="B")
    sync(folder, "--read", "off")
    assert json.loads(run("api", "GET", "/tasks").stdout)[0]["read"] == "off"
    assert "cinestrata read" in sync(folder, "--read", "speech", status=2)["said"]
    video = videos("s")["A"]["id"]
    note(video, "a lynx")
    with session_scope(write=True) as session:
        at, key = now(session), {"words_key": "k", "verdict": "right", "caller": "c", "caller_kind": "user"}
        vector_id = session.execute(_vector_id(video)).scalar_one()
        session.add(Feedback(video_vector_id=vector_id, text="a cat", created_at=at, **key))
    (folder / "a.mp4").write_text("A, encoded again")
    plan = sync(folder, "--vanished", "delete")
    assert (plan["new"], plan["changed"], plan["vanished"]) == ([], ["a.mp4"], [])
    after = videos("s")
    assert sorted(after) == ["A, encoded again", "B"]
    assert (after["A, encoded again"]["id"], after["A, encoded again"]["captions"]) == (video, ["a lynx"])
    with session_scope() as session:
        (kept,) = session.query(Feedback).all()
        assert kept.video_vector_id == session.execute(_vector_id(video)).scalar_one() != vector_id


def _vector_id(video: str) -> Any:
    from sqlalchemy import select

    from service.catalog.tables import Video

    return select(Video.vector_id).where(Video.id == video)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["s", "other"])
def test_file_moves_between_two_followed_folders(place: Path, first: str) -> None:
    """The video moves with it, whichever sync runs first."""
    folder = write(place / "s", a__mp4="A", b__mp4="B", c__mp4="C")
    other = write(place / "other", z__mp4="Z")
    for followed in (folder, other):
        sync(followed)
    video = videos("s")["B"]["id"]
    note(video, "a lynx")
    (folder / "b.mp4").rename(other / "b.mp4")
    order = [folder, other] if first == "s" else [other, folder]
    for followed in (*order, *order):
        sync(followed, "--vanished", "delete")
    assert sorted(videos("s")) == ["A", "C"]
    moved = videos("other")["B"]
    assert (moved["id"], moved["captions"], moved["name"]) == (video, ["a lynx"], "b.mp4")


def test_most_files_vanish_only_with_a_yes(place: Path) -> None:
    folder = write(place / "s", a__mp4="A", b__mp4="B", c__mp4="C")
    sync(folder)
    for name in ("a.mp4", "b.mp4"):
        (folder / name).unlink()
    said = sync(folder, "--vanished", "delete", status=1)["said"]
    assert "2 of 3 videos have no file any more. None was deleted." in said
    assert len(json.loads(run("api", "GET", "/videos", "task=s").stdout)["videos"]) == 3
    sync(folder, "--vanished", "delete", "--yes")
    assert names("s") == {"C": "c.mp4"}


def test_rejected_files_are_reported_without_the_folders_of_uploads(place: Path) -> None:
    folder = write(place / "s", a__mp4="A", b__mp4="broken")
    sync(folder)
    (reason,) = sync(folder)["rejected"].values()
    assert "upload:" not in reason
    assert reason.endswith("b.mp4 is damaged.")


def test_registered_sync_refuses_the_name_of_another_folder(
    folder: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "send_sync", lambda sync: True)
    first = write(folder.media_root / "p" / "clips", a__mp4="A")
    second = write(folder.media_root / "q" / "clips", b__mp4="B")
    for _ in range(2):
        assert run("sync", first, "--every", "1h").exit_code == 0
    refused = run("sync", second, "--every", "1h")
    assert (refused.exit_code, "follows another folder" in refused.output) == (1, True)
    assert run("sync", second, "--every", "1h", "--name", "clips").exit_code == 0


@pytest.mark.slow
def test_two_folders_of_one_domain_keep_what_either_has(place: Path) -> None:
    """A file moves from one to the other, and one is in both until it is in none."""
    first = write(place / "p", x__mp4="X", b__mp4="B", both__mp4="S")
    second = write(place / "q", c__mp4="C", also__mp4="S")
    for followed in (first, second):
        sync(followed, "--name", "all")
    video = videos("all")["X"]["id"]
    note(video, "a lynx")
    (first / "x.mp4").rename(second / "y.mp4")
    for followed in (second, first, second):
        sync(followed, "--name", "all", "--vanished", "delete")
    assert (videos("all")["X"]["id"], videos("all")["X"]["captions"]) == (video, ["a lynx"])
    (first / "both.mp4").unlink()
    (second / "also.mp4").unlink()
    for followed in (first, second):
        sync(followed, "--name", "all", "--vanished", "delete")
    assert sorted(videos("all")) == ["B", "C", "X"]


def test_texts_of_an_interrupted_sync_are_edited_by_the_next(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(place / "s", b__mp4="B", b__srt=SUBTITLE.format("photodiode"), b__txt="a dog\n")
    sync(folder)
    write(folder, b__srt=SUBTITLE.format("phonograph"), b__txt="a cat\n", c__mp4="C")

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sync_command.sync_plan.FollowedLibrary, "edit_texts", kill)
        with pytest.raises(KeyboardInterrupt):
            sync_command.run_sync(folder, vanished="keep", dry_run=False, **NO_OPTIONS)
    finish()
    sync(folder)
    video = videos("s")["B"]
    assert video["captions"] == ["a cat"]
    assert [cue.text for cue in get_video(video["id"]).transcript] == ["the phonograph hums"]
