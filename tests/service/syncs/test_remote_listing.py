"""Listings of a real S3 server and manifests of a real web server, as sources of tasks and syncs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cinestrata_schemas.syncs import StoredFile
from cinestrata_schemas.videos import VideoSummary
from service.core.errors import InvalidInput, LeaseLost, SourceUnavailable
from service.core.settings import Settings
from service.storage.library_files import SourceReader
from service.syncs.source_listing import check_source, list_source
from service.syncs.sync_plan import FollowedDomain, file_key
from service.syncs.sync_planner import plan_sync
from service.tasks.manifests.folder_videos import list_remote_videos
from tests.web_files import WebFiles

CAPTIONS = {"a.mp4": [], "b.mp4": ["a dog runs", "the dog jumps"]}


@pytest.fixture
def bucket(tmp_path: Path, settings_factory: Callable[..., Settings], s3: Any) -> Any:
    """A bucket whose folder ``videos`` is allowed."""
    settings_factory(tmp_path, upgraded=False, sources="s3://films/videos/")
    s3.create_bucket(Bucket="films")
    put(s3, a__mp4="a", b__txt="a dog runs\nthe dog jumps", b__mp4="b", notes__pdf="no video")
    return s3


def put(s3: Any, **files: str) -> None:
    for name, content in files.items():
        s3.put_object(Bucket="films", Key=f"videos/{name.replace('__', '.')}", Body=content.encode())


def remove_bucket(s3: Any) -> None:
    for key in ("a.mp4", "b.mp4", "b.txt", "notes.pdf"):
        s3.delete_object(Bucket="films", Key=f"videos/{key}")
    s3.delete_bucket(Bucket="films")


def test_folder_is_listed_with_captions_of_sidecar_files(bucket: Any) -> None:
    source = list_source("s3://films/videos", captions_from_names=False)
    videos = [file.video for file in source.files]
    assert {video.uri: video.captions for video in videos} == CAPTIONS
    assert [video.uri for video in source.place(videos)] == [f"s3://films/videos/{name}" for name in CAPTIONS]


def test_manifest_in_the_folder_lists_the_videos(bucket: Any) -> None:
    put(bucket, manifest__csv="file,caption\na.mp4,a cat sleeps\n")
    for source in ("s3://films/videos/", "s3://films/videos/manifest.csv"):
        (file,) = list_source(source, captions_from_names=False).files
        assert (file.video.uri, file.video.captions, file.bytes) == ("a.mp4", ["a cat sleeps"], 1)
    for name, reason in (
        ("none.mp4", r"the row that names it: manifest\.csv:2"),
        ("../secret.mp4", "is outside the manifest"),
    ):
        put(bucket, manifest__csv=f"file,caption\n{name},a cat\na.mp4,a cat sleeps\n")
        source = list_source("s3://films/videos/", captions_from_names=False)
        assert [file.video.uri for file in source.files] == ["a.mp4"]
        assert re.search(reason, source.left_out[name])
        put(bucket, manifest__csv=f"file,caption\n{name},a cat\n")
        with pytest.raises(InvalidInput, match=reason):
            list_source("s3://films/videos/", captions_from_names=False)


def test_objects_of_systems_and_side_files_that_cannot_be_read_stop_nothing(bucket: Any) -> None:
    for key in ("@eaDir/a.mp4/x.mp4", "#recycle/c.mp4", "._a.mp4", "a.f137.mp4", "@eaDir/captions.csv"):
        bucket.put_object(Bucket="films", Key=f"videos/{key}", Body=b"x")
    put(
        bucket,
        a__srt="<html>",
        table__json='{"cap": "a"}',
        more__csv='file,caption\na.mp4,wrong\nb.mp4,"\0"\n',
    )
    listing = list_remote_videos("s3://films/videos/", SourceReader())
    assert {video.uri: video.captions for video in listing.videos} == CAPTIONS
    assert {*listing.left_out} == {"a.srt", "table.json", "more.csv"}
    assert {*listing.omitted} == {"@eaDir/", "#recycle/", "._a.mp4", "a.f137.mp4"}


def test_typed_manifest_is_refused_before_its_download(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceReader, "read", lambda *_: pytest.fail("the manifest is downloaded"))
    put(bucket, manifest__parquet="PAR1")
    for source in ("s3://films/videos/", "s3://films/videos/manifest.parquet"):
        with pytest.raises(InvalidInput, match=r"doesn't read 'manifest\.parquet'.*CSV or JSONL"):
            list_source(source, captions_from_names=False)
    with pytest.raises(InvalidInput) as caught:
        check_source("s3://films/videos/manifest.parquet")
    assert caught.value.errors[0].field == "source"


def test_objects_that_cannot_be_used_do_not_block_the_others(bucket: Any) -> None:
    bucket.put_object(Bucket="films", Key="videos/x/../c.mp4", Body=b"c")
    put(bucket, b__txt="\0")
    bucket.put_object(Bucket="films", Key="videos/a.info.json", Body=b"[")
    put(bucket, d__mp4="d")
    source = list_source("s3://films/videos/", captions_from_names=False)
    assert [file.video.uri for file in source.files] == ["a.mp4", "b.mp4", "d.mp4"]
    assert sorted(source.left_out) == ["a.info.json", "b.txt", "x/../c.mp4"]
    assert ".." in source.left_out["x/../c.mp4"]


def test_progress_is_reported_while_a_bucket_is_listed(bucket: Any) -> None:
    """A lease is renewed with each page of the listing and each file that is read."""
    reports: list[None] = []
    list_source("s3://films/videos/", False, lambda: reports.append(None))
    assert len(reports) == 2  # one page, one text

    def lose() -> None:
        raise LeaseLost("lost")

    with pytest.raises(LeaseLost):
        list_source("s3://films/videos/", False, lose)


def test_only_changed_objects_are_new_versions(bucket: Any) -> None:
    """An object with another name keeps its video."""
    source = list_source("s3://films/videos/", False)
    first = plan_sync(source, FollowedDomain())
    videos = [
        VideoSummary.model_construct(
            id=video.id, uri=f"{source.source}{video.uri}", status="accepted", task_id="tsk_1",
            captions=video.captions, content_hash=video.uri, replaces=None,
        )
        for video in first.new
    ]  # fmt: skip
    shared = {"task_id": "tsk_1", "source": source.source}
    files = [
        StoredFile(key=file_key(source.source, path), **shared, **row.model_dump())
        for path, row in first.rows.items()
    ]
    put(bucket, a__mp4="x", c__mp4="c", d__mp4="b")
    bucket.delete_object(Bucket="films", Key="videos/b.mp4")
    second = plan_sync(list_source("s3://films/videos/", False), FollowedDomain(videos, files, {"tsk_1"}))
    ids = {video.uri: video.id for video in first.new}
    assert {video.uri: video.replaces for video in second.changed} == {"a.mp4": ids["a.mp4"]}
    assert [video.uri for video in second.new] == ["c.mp4"]
    assert (second.renamed, second.vanished) == ({ids["b.mp4"]: "d.mp4"}, [])
    assert list(second.late_rows) == ["a.mp4"]


@pytest.mark.parametrize(
    "source",
    [
        "s3://films/",
        "s3://other/videos/",
        "https://example.com/videos/",
        "ftp://x/y",
        "s3://u:p@films/videos",
    ],
)
def test_sources_that_are_not_allowed_are_refused(source: str, bucket: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_source(source)
    assert caught.value.errors[0].field == "source"
    with pytest.raises(InvalidInput):
        list_source(source, captions_from_names=False)


def test_empty_folder_and_a_missing_bucket_delete_nothing(bucket: Any) -> None:
    with pytest.raises(InvalidInput, match="no videos"):
        list_source("s3://films/videos/deep", captions_from_names=False)
    remove_bucket(bucket)
    with pytest.raises(SourceUnavailable, match="does not exist"):
        list_source("s3://films/videos/", captions_from_names=False)


def test_bucket_that_vanishes_in_the_middle_of_a_listing_deletes_nothing(bucket: Any) -> None:
    """The bucket is deleted after its files are listed and before their texts are read."""
    with pytest.raises(SourceUnavailable, match="bucket s3://films does not exist"):
        list_source("s3://films/videos/", False, lambda: remove_bucket(bucket))


def test_command_line_reads_a_manifest_of_a_web_server(web_files: WebFiles) -> None:
    lines = '{"uri": "a b.mp4", "captions": ["a cat"]}\n{"uri": "https://example.com/c.mp4?id=1"}\n'
    web_files.files["/videos/list.jsonl"] = lines.encode()
    listing = list_remote_videos(f"{web_files.url}/videos/list.jsonl?token=1", SourceReader(False))
    assert [video.uri for video in listing.place(listing.videos)] == [
        f"{web_files.url}/videos/a%20b.mp4",
        "https://example.com/c.mp4?id=1",
    ]
    with pytest.raises(InvalidInput, match="can't be listed"):
        list_remote_videos(f"{web_files.url}/videos/", SourceReader(False))
