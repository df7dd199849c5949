"""Tables of captions beside videos: videos that the table does not name are ingested in every form."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cinestrata_schemas.tasks import LocalFile, LocalText, PreviewRequest, VideoSpec
from service.core.errors import InvalidInput
from service.core.settings import settings
from service.syncs.source_listing import list_source
from service.tasks.archive_unpacking import unpack_archive
from service.tasks.manifests.caption_tables import FileMatcher
from service.tasks.manifests.folder_videos import list_folder_videos
from service.tasks.upload_preview import preview_upload
from tests.packed_files import pack_zip, write_files

pytestmark = pytest.mark.usefixtures("sqlite_catalog")

TABLE = "file,caption,place\na.mp4,a cat,attic\n./clips/b.mp4,a dog,yard\n"
FILES = {
    "a.mp4": b"A",
    "a.txt": b"not read: the table names the video",
    "clips/b.mp4": b"B",
    "clips/c.mp4": b"C",
    "d.mp4": b"D",
    "d.txt": b"a bird",
    "._a.mp4": b"added by a system",
    "captions.csv": TABLE.encode(),
}
CAPTIONS = {"a.mp4": ["a cat"], "clips/b.mp4": ["a dog"], "clips/c.mp4": [], "d.mp4": ["a bird"]}


def _preview_videos(files: dict[str, bytes]) -> list[VideoSpec]:
    texts = [name for name in files if not name.endswith(".mp4")]
    request = PreviewRequest(
        name="pets",
        files=[LocalFile(path=name, size=len(content)) for name, content in files.items()],
        texts=[LocalText.model_construct(path=name, content=files[name]) for name in texts],
    )
    return preview_upload(request).videos


def _list_folder(path: Path, **options: Any) -> dict[str, list[str]]:
    return {video.uri: video.captions for video in list_folder_videos(path, **options).videos}


def _list_written(files: dict[str, bytes]) -> Sequence[VideoSpec]:
    return list_folder_videos(write_files(settings().media_root / "pets", files)).videos


def _list_synced(files: dict[str, bytes]) -> Sequence[VideoSpec]:
    write_files(settings().media_root / "pets", files)
    return [file.video for file in list_source("pets", captions_from_names=False).files]


def _unpack(files: dict[str, bytes]) -> Sequence[VideoSpec]:
    return unpack_archive(pack_zip(files), "pets.zip", "tsk_1")


Read = Callable[[dict[str, bytes]], Sequence[VideoSpec]]
FRONT_ENDS = pytest.mark.parametrize("read", [_list_written, _list_synced, _unpack, _preview_videos])


def test_videos_without_a_row_are_named(tmp_path: Path) -> None:
    assert list_folder_videos(write_files(tmp_path / "pets", FILES)).without_row == ["clips/c.mp4", "d.mp4"]


def test_table_in_the_folder_of_an_archive() -> None:
    """Videos beside the folder of the table are kept as well."""
    files = {f"pets/{name}": content for name, content in FILES.items()}
    videos = unpack_archive(pack_zip(files | {"more/e.mp4": b"E", "__MACOSX/a.mp4": b""}), "p.zip", "tsk_1")
    expected = {f"pets/{name}": captions for name, captions in CAPTIONS.items()} | {"more/e.mp4": []}
    assert {video.uri.removeprefix("upload://tsk_1/"): video.captions for video in videos} == expected
    files["pets/captions.csv"] = b"file\n../x.mp4\n"
    with pytest.raises(InvalidInput, match="safe path") as caught:
        unpack_archive(pack_zip(files), "pets.zip", "tsk_2")
    assert caught.value.errors[0].field == "videos[0].uri"


def test_manifests_and_named_tables_list_all_videos(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "pets", FILES)
    assert [*_list_folder(folder / "captions.csv")] == ["a.mp4", "clips/b.mp4"]
    (folder / "captions.csv").rename(folder / "manifest.csv")
    assert [*_list_folder(folder)] == ["a.mp4", "clips/b.mp4"]
    assert not list_folder_videos(folder).without_row
    files = {name.replace("captions.csv", "manifest.csv"): content for name, content in FILES.items()}
    assert len(unpack_archive(pack_zip(files), "pets.zip", "tsk_1")) == 2


def test_rows_with_other_spellings_of_a_path_name_the_file(tmp_path: Path) -> None:
    name = unicodedata.normalize("NFC", "Küche.mp4")
    absolute = str(tmp_path / "pets" / "a.mp4")
    rows = [absolute, "clips//b.mp4", "clips/../d.mp4", "https://x.example/z.mp4", name]
    table = "file,caption\n" + "".join(f"{row},text\n" for row in rows)
    folder = write_files(tmp_path / "pets", FILES | {"captions.csv": table.encode()})
    (folder / unicodedata.normalize("NFD", name)).write_bytes(b"K")
    assert [*_list_folder(folder)] == [*rows, "clips/c.mp4"]


@pytest.mark.parametrize("table", ["captions.csv", None])
def test_every_front_end_leaves_out_files_of_systems_and_downloads(table: str | None, tmp_path: Path) -> None:
    junk = ("@eaDir/a.mp4/x.mp4", "#recycle/d.mp4", "__MACOSX/._d.mp4", ".Trash/e.mp4")
    junk += ("a.f137.mp4", "a.temp.mp4")
    files = {name: content for name, content in FILES.items() if name != "captions.csv" or table}
    files |= dict.fromkeys([*junk, "#recycle/captions.csv"], b"file,caption\na.mp4,wrong\n")
    expected = CAPTIONS if table else {name: [] for name in CAPTIONS} | {"d.mp4": ["a bird"]}
    for read in (_list_written, _list_synced, _unpack, _preview_videos):
        captions = {video.uri.removeprefix("upload://tsk_1/"): video.captions for video in read(files)}
        assert captions == expected | {"a.mp4": captions["a.mp4"]}, read
        assert "wrong" not in captions["a.mp4"], read


def _subtitles(text: str) -> bytes:
    return f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n".encode()


SUBTITLED = FILES | {
    "a.srt": _subtitles("the cat speaks"),
    "clips/b.en.vtt": b"WEBVTT\n\n00:01.000 --> 00:02.000\nthe dog speaks\n",
    "d.srt": _subtitles("the bird speaks"),
}


def _spoken(videos: Sequence[VideoSpec]) -> dict[str, tuple[list[str], list[str]]]:
    return {
        video.uri.removeprefix("upload://tsk_1/"): (video.captions, [cue.text for cue in video.transcript])
        for video in videos
    }


@FRONT_ENDS
def test_every_front_end_has_the_same_videos(read: Read) -> None:
    """Captions of side files are replaced by those of the table, and subtitles are not."""
    videos = read(SUBTITLED)
    assert _spoken(videos) == {
        "a.mp4": (["a cat"], ["the cat speaks"]),
        "clips/b.mp4": (["a dog"], ["the dog speaks"]),
        "clips/c.mp4": ([], []),
        "d.mp4": (["a bird"], ["the bird speaks"]),
    }
    metadata = {v.uri.removeprefix("upload://tsk_1/"): v.metadata for v in videos if v.metadata}
    assert metadata == {"a.mp4": {"place": "attic"}, "clips/b.mp4": {"place": "yard"}}
    uploads = settings().uploads_dir / "tsk_1"
    stored = {path.relative_to(uploads).as_posix() for path in uploads.rglob("*") if path.is_file()}
    assert stored in ({*CAPTIONS}, set())


@FRONT_ENDS
@pytest.mark.parametrize("table", ["captions.jsonl", "manifest.jsonl"])
def test_transcript_of_a_row_replaces_subtitles(read: Read, table: str) -> None:
    rows = (
        b'{"file_name": "a.mp4", "transcript": [{"start": 0, "end": 1, "text": "by hand"}]}\n'
        b'{"file_name": "clips/b.mp4", "text": "a dog"}\n'
    )
    files = {name: content for name, content in SUBTITLED.items() if name != "captions.csv"}
    spoken = _spoken(read(files | {table: rows}))
    assert spoken["a.mp4"] == ([], ["by hand"])
    assert spoken["clips/b.mp4"] == (["a dog"], ["the dog speaks"])


def test_broken_subtitles_of_a_video_with_a_row_are_named(tmp_path: Path) -> None:
    broken = FILES | {"a.srt": b"\xff\xfe\xff"}
    listing = list_folder_videos(write_files(tmp_path / "pets", broken))
    assert _spoken(listing.videos)["a.mp4"] == (["a cat"], [])
    assert listing.left_out["a.srt"].field.startswith("a.srt")
    with pytest.raises(InvalidInput, match=r"a\.srt"):
        _unpack(broken)


def test_subtitles_of_a_row_do_not_leave_the_root(tmp_path: Path) -> None:
    root = write_files(tmp_path / "pets", FILES)
    write_files(tmp_path, {"secret.srt": _subtitles("a secret")})
    (root / "a.srt").symlink_to(tmp_path / "secret.srt")
    listing = list_folder_videos(root, root=root.resolve())
    assert "leads outside" in listing.left_out["a.srt"].message
    assert "a secret" not in str(listing.videos)


@pytest.mark.parametrize("row", [".", "/", "nowhere/x.mp4", "https://x.example/a.mp4", "y" * 300 + ".mp4"])
def test_rows_without_a_file_beside_them_have_no_subtitles(tmp_path: Path, row: str) -> None:
    manifest = f"file,caption\na.mp4,x\n{row},y\n".encode()
    listing = list_folder_videos(write_files(tmp_path / "pets", SUBTITLED | {"manifest.csv": manifest}))
    assert _spoken(listing.videos).get(row, (["y"], [])) == (["y"], [])
    assert _spoken(listing.videos)["a.mp4"] == (["x"], ["the cat speaks"])


SPEECH = b'{"text": "x", "segments": [{"start": 1, "end": 2, "text": "json"}], "language": "en"}'
SIDE_FILES = {
    "DJI_1.MP4": b"A",
    "DJI_1.SRT": _subtitles("upper"),
    "DJI_1.TXT": b"a field",
    "in/b.mp4": b"B",
    "in/b.en.forced.srt": _subtitles("forced"),
    "in/b.English (SDH).srt": _subtitles("café").decode().encode("cp1252"),
    "in/b.live_chat.json": b'{"replayChatItemAction": {}}',
    "c.mp4": b"C",
    "c.json": SPEECH,
    "c.mp4.suppl.json": b'{"description": "Grandma", "photoTakenTime": {"timestamp": "0"}}',
    "d.mp4": b"D",
    "d.tsv": b"start\tend\ttext\n1000\t2000\ttable\n",
    "d.idx": b"index of pictures",
    "d.sub": b"\0\0\1\xba pictures",
    "captions.csv": b"file,caption\nd.mp4,a cat\n",
}


@FRONT_ENDS
def test_side_files_are_found_in_every_form(read: Read) -> None:
    videos = {video.uri.removeprefix("upload://tsk_1/"): video for video in read(SIDE_FILES)}
    assert {uri: [cue.text for cue in video.transcript] for uri, video in videos.items()} == {
        "DJI_1.MP4": ["upper"],
        "in/b.mp4": ["café"],
        "c.mp4": ["json"],
        "d.mp4": ["table"],
    }
    captions = {uri: video.captions for uri, video in videos.items() if video.captions}
    assert captions == {"DJI_1.MP4": ["a field"], "d.mp4": ["a cat"]}
    assert (videos["c.mp4"].metadata or {})["description"] == "Grandma"


def test_rows_of_files_with_the_same_name_are_found() -> None:
    """One folder for each video: the comparison of each row with each file would take hours for 100,000 videos."""
    rows = [f"/data/clips/{number}/video.mp4" for number in range(20_000)]
    matcher = FileMatcher([row.removeprefix("/data/") for row in rows])
    assert all(matcher.find(row) == [row.removeprefix("/data/")] for row in rows)
    matcher = FileMatcher([f"kitchen/{number}/video.mp4" for number in range(20_000)])
    assert matcher.find("/data/kitchen/17/video.mp4") == ["kitchen/17/video.mp4"]
    assert all(matcher.find(row) == [] for row in rows)
    assert len(matcher.find("video.mp4")) == 2


@pytest.mark.parametrize(
    ("row", "files"),
    [
        ("a.mp4", ["b/a.mp4"]),
        ("b/a.mp4", ["b/a.mp4"]),
        ("/x/y/b/a.mp4", ["b/a.mp4"]),
        ("/x/top.mp4", ["top.mp4"]),
        ("p.mp4", []),
        ("c/a.mp4", []),
        ("same.mp4", ["table/same.mp4"]),
        ("/x/1/s.mp4", ["1/s.mp4", "s.mp4"]),
    ],
)
def test_paths_are_compared_from_their_ends(row: str, files: list[str]) -> None:
    paths = ["b/a.mp4", "top.mp4", "same.mp4", "table/same.mp4", "1/s.mp4", "s.mp4"]
    assert FileMatcher(paths).find(row, "table") == files


def test_rows_of_deep_paths_are_compared_by_their_last_folders() -> None:
    """Each folder of a row costs a lookup with a path of up to 4 KB."""
    matcher = FileMatcher(["clips/a.mp4", "/".join(["x"] * 100) + "/b.mp4"])
    assert matcher.find("x/" * 2000 + "clips/a.mp4") == ["clips/a.mp4"]
    assert matcher.find("x/" * 100 + "b.mp4") == ["x/" * 100 + "b.mp4"]
    assert matcher.find("x/" * 2000 + "b.mp4") == []


@pytest.mark.parametrize(
    ("row", "files"),
    [
        ("video0", ["clips/video0.mp4"]),
        ("VIDEO0", []),
        ("video", []),
        ("two", ["two.avi", "two.mp4"]),
        ("a.b", ["clips/a.b.webm"]),
        ("clips/video0", ["clips/video0.mp4"]),
        ("notes", []),
        ("/data/upload/1/0a1b2c3d-top.mp4", ["top.mp4"]),
        ("/data/upload/1/1111aaaa-kept.mp4", ["1111aaaa-kept.mp4"]),
    ],
)
def test_ids_and_names_of_uploads_find_their_files(row: str, files: list[str]) -> None:
    names = "clips/video0.mp4 video0.txt two.avi two.mp4 clips/a.b.webm notes.txt top.mp4 1111aaaa-kept.mp4 kept.mp4"
    assert FileMatcher(names.split()).find(row) == files
