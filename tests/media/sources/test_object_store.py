"""Objects of a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from media import MediaError
from media.errors import InconsistentFile, SourceOutage
from media.sources.downloading import DownloadLimits, SourceCache, download_file
from media.sources.media_source import ByteRange, RemoteStream, SourceUri
from media.sources.object_store import ObjectStore

KEY = "videos/a b#1?.mp4"
BLOCK = 8 * 1024**2


@pytest.fixture
def bucket(s3: Any) -> Any:
    s3.create_bucket(Bucket="films")
    s3.put_object(Bucket="films", Key=KEY, Body=b"0123456789")
    return s3


def download(cache: SourceCache, key: str = KEY, bucket: str = "films") -> AbstractContextManager[Path]:
    limits = DownloadLimits(max_bytes=20_000_000, attempts=2)
    uri = SourceUri.parse(f"s3://{bucket}/{key}")
    return download_file(ObjectStore(), uri, cache, limits, sleep=lambda _: None)


@pytest.mark.slow
def test_object_is_downloaded_and_dropped(bucket: Any, cache: SourceCache) -> None:
    with download(cache) as path:
        assert path.read_bytes() == b"0123456789"
    assert not path.exists()


def test_ranges_of_an_object(bucket: Any) -> None:
    uri = SourceUri.parse(f"s3://films/{KEY}")
    for part, expected in (
        (ByteRange(2, 4), b"234"),
        (ByteRange(7, 99), b"789"),
        (ByteRange(7, None), b"789"),
        (ByteRange(None, 3), b"789"),
    ):
        with ObjectStore().open(uri, part) as stream:
            assert b"".join(stream.chunks) == expected
            assert (stream.total, stream.length, stream.is_partial) == (10, 3, True)
    with pytest.raises(MediaError, match="range"), ObjectStore().open(uri, ByteRange(10, None)):
        pytest.fail("the range was accepted")


@pytest.mark.slow
def test_missing_object_is_rejected_and_a_missing_bucket_is_an_outage(
    bucket: Any, cache: SourceCache
) -> None:
    with pytest.raises(MediaError, match="does not exist in its bucket"), download(cache, "none.mp4"):
        pytest.fail("the object was found")
    with pytest.raises(MediaError, match="is a folder"), download(cache, "videos"):
        pytest.fail("the folder was downloaded")
    with pytest.raises(SourceOutage, match="bucket s3://gone does not exist"), download(cache, bucket="gone"):
        pytest.fail("the bucket was found")


def test_bucket_that_vanishes_during_a_download_is_an_outage(bucket: Any, cache: SourceCache) -> None:
    bucket.put_object(Bucket="films", Key="large.mp4", Body=b"x" * (BLOCK + 1))

    class VanishingStore:
        """The store, whose bucket is deleted after the first block."""

        @contextmanager
        def open(self, uri: SourceUri, part: ByteRange | None = None) -> Iterator[RemoteStream]:
            with ObjectStore().open(uri, part) as stream:
                yield replace(stream, chunks=self._delete_after_first(stream.chunks))

        def _delete_after_first(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
            yield next(chunks)
            for key in (KEY, "large.mp4"):
                bucket.delete_object(Bucket="films", Key=key)
            bucket.delete_bucket(Bucket="films")
            yield from chunks

    uri = SourceUri.parse("s3://films/large.mp4")
    limits = DownloadLimits(max_bytes=20_000_000, attempts=1)
    with (
        pytest.raises(SourceOutage, match="bucket s3://films does not exist"),
        download_file(VanishingStore(), uri, SourceCache(cache.folder, 20_000_000), limits),
    ):
        pytest.fail("the download succeeded")


@pytest.mark.slow  # waits for attempts of the client
def test_store_that_is_down_is_an_outage_without_credentials_in_its_text(
    bucket: Any, cache: SourceCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(SourceOutage) as caught, download(cache):
        pytest.fail("the download succeeded")
    assert "hunter2" not in str(caught.value)
    assert "s3://films cannot be read" in str(caught.value)


def test_objects_below_a_folder_are_listed_with_their_versions(bucket: Any) -> None:
    for key in ("videos/b.mp4", "videos/deep/c.mp4", "videos2/d.mp4", "videos/"):
        bucket.put_object(Bucket="films", Key=key, Body=key.encode())
    first = ObjectStore().list_files(SourceUri.parse("s3://films/videos/"))
    assert [file.name for file in first] == ["a b#1?.mp4", "b.mp4", "deep/c.mp4"]
    assert [file.size for file in first] == [10, 12, 17]
    bucket.put_object(Bucket="films", Key="videos/b.mp4", Body=b"other".ljust(12))
    second = ObjectStore().list_files(SourceUri.parse("s3://films/videos"))
    assert [old.version == new.version for old, new in zip(first, second, strict=True)] == [True, False, True]
    with pytest.raises(SourceOutage, match="does not exist"):
        ObjectStore().list_files(SourceUri.parse("s3://gone/videos/"))
    assert ObjectStore().list_files(SourceUri.parse("s3://films/empty/")) == []


@pytest.mark.slow  # writes more objects than a page has
def test_all_pages_of_a_listing_are_read(bucket: Any) -> None:
    for number in range(1001):
        bucket.put_object(Bucket="films", Key=f"many/{number:04}.mp4", Body=b"x")
    reports: list[None] = []
    files = ObjectStore().list_files(SourceUri.parse("s3://films/many/"), lambda: reports.append(None))
    assert (len(files), files[-1].name, len(reports)) == (1001, "1000.mp4", 2)


def test_object_that_changes_while_it_is_read_is_named(bucket: Any) -> None:
    with ObjectStore().open(SourceUri.parse(f"s3://films/{KEY}")) as stream:
        assert next(stream.chunks) == b"0123456789"
        bucket.put_object(Bucket="films", Key=KEY, Body=b"9876543210")
        with pytest.raises(InconsistentFile, match="changes while it is read"):
            next(stream.chunks)
