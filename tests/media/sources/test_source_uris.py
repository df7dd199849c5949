"""URIs of sources, the allow-list of prefixes, and redaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinestrata_schemas.uris import is_source_uri, redact_uri
from media import MediaError
from media.sources.media_source import SourcePrefix, SourceUri, file_name, find_prefix


def is_allowed(uri: str, *prefixes: str) -> bool:
    try:
        find_prefix(SourceUri.parse(uri), [SourcePrefix.parse(prefix) for prefix in prefixes])
    except MediaError:
        return False
    return True


@pytest.mark.parametrize(
    ("uri", "prefix"),
    [
        ("s3://bucket/videos/a.mp4", "s3://bucket/videos/"),
        ("s3://bucket/videos/deep/a b#1?.mp4", "s3://bucket/videos"),
        ("S3://bucket/a.mp4", "s3://bucket"),
        ("gs://bucket/a.mp4", "gs://bucket/"),
        ("https://Videos.Example.com/x/a.mp4?token=1", "https://videos.example.com/"),
        ("https://videos.example.com:443/x/a.mp4", "https://videos.example.com/x"),
        ("https://example.com/k%C3%BCche/a.mp4", "https://example.com/küche/"),
        ("https://example.com/any/a.mp4", "https://"),
        ("http://10.0.0.5:8080/v/a.mp4", "private+http://10.0.0.5:8080/v/"),
        ("https://[fd12::1]/a.mp4", "private+https://[fd12::1]/"),
    ],
)
def test_files_below_a_prefix_are_allowed(uri: str, prefix: str) -> None:
    assert is_source_uri(uri)
    assert is_allowed(uri, prefix)
    assert not is_allowed(uri), "without prefixes, nothing is allowed"


@pytest.mark.parametrize(
    ("uri", "prefix"),
    [
        ("s3://bucket2/a.mp4", "s3://bucket"),
        ("s3://bucket/videos2/a.mp4", "s3://bucket/videos"),
        ("gs://bucket/a.mp4", "s3://bucket"),
        ("https://example.com.evil.org/a.mp4", "https://example.com/"),
        ("https://example.com:8443/a.mp4", "https://example.com/"),
        ("http://example.com/a.mp4", "https://example.com/"),
        ("http://example.com/a.mp4", "https://"),
        ("https://example.com/other/a.mp4", "https://example.com/videos/"),
        ("https://example.com/videos", "https://example.com/videos/"),
    ],
)
def test_files_beside_a_prefix_are_refused(uri: str, prefix: str) -> None:
    assert not is_allowed(uri, prefix)


@pytest.mark.parametrize(
    "uri",
    [
        "https://example.com/videos/../secret.mp4",
        "https://example.com/videos/%2e%2E/secret.mp4",
        "https://example.com/videos/..%2fsecret.mp4",
        "https://example.com/videos/..%5csecret.mp4",
        "https://example.com/videos/\\..\\secret.mp4",
        "https://example.com/videos/a.mp4#part",
        "https://example.com/videos/a\n.mp4",
        "https://example.com/videos/%ff.mp4",
        "https://user@example.com/videos/a.mp4",
        "https://example.com@evil.org/videos/a.mp4",
        "https:///videos/a.mp4",
        "https://[::1/videos/a.mp4",
        "s3://bucket/videos/../a.mp4",
        "s3://AKIA:secret@bucket/a.mp4",
        "s3://bucket?versionId=1",
        "s3:///a.mp4",
        "s3://../a.mp4",
    ],
)
def test_malformed_uris_are_refused(uri: str) -> None:
    with pytest.raises(MediaError):
        SourceUri.parse(uri)


@pytest.mark.parametrize(
    "uri", ["s3://bucket", "s3://bucket/", "s3://bucket/folder/", "https://example.com/"]
)
def test_folders_are_no_files(uri: str) -> None:
    with pytest.raises(MediaError, match="names no file"):
        SourceUri.parse(uri).require_file()


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("/videos", "does not begin with"),
        ("ftp://example.com/", "does not begin with"),
        ("http://", "host"),
        ("s3://", "bucket"),
        ("private+https://", "host"),
        ("private+s3://bucket/", "web servers"),
        ("https://127.0.0.1/", "private address"),
        ("https://localhost:8443/", "private address"),
        ("https://[::1]/", "private address"),
        ("https://example.com/?token=1", "query"),
        ("https://example.com/a/../b", "path"),
    ],
)
def test_wrong_prefixes_are_refused(prefix: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SourcePrefix.parse(prefix)


def test_errors_and_redacted_uris_contain_no_credentials() -> None:
    for uri in (
        "https://user:hunter2@example.com/a.mp4",
        "https://example.com/../a.mp4?token=hunter2",
        "s3://key:hunter2@bucket/a.mp4",
        "ftp://user:hunter2@example.com/a.mp4",
        "HTTPS://example.com/a.mp4?hunter2",
    ):
        assert "hunter2" not in redact_uri(uri)
    with pytest.raises(MediaError) as caught:
        SourceUri.parse("https://user:hunter2@example.com/a.mp4")
    assert "hunter2" not in str(caught.value)
    assert redact_uri("cooking/what?.mp4") == "cooking/what?.mp4"
    assert redact_uri("s3://bucket/what?.mp4") == "s3://bucket/what?.mp4"


@given(
    scheme=st.sampled_from(["s3", "gs", "http", "HTTPS"]),
    rest=st.text(
        st.sampled_from([*"ab.:/\\%@?#[]~ 2eEfF0", "\n", "é", "。", "\ud800", "x", "n", "-"]), max_size=24
    ),
)
def test_any_text_is_parsed_or_refused(scheme: str, rest: str) -> None:
    uri = f"{scheme}://{rest}"
    assert isinstance(file_name(uri), str)
    assert isinstance(redact_uri(uri), str)
    try:
        parsed = SourceUri.parse(uri)
    except MediaError:
        return
    assert ".." not in parsed.segments
    assert "@" not in parsed.host
    prefix = SourcePrefix.parse(f"private+{parsed.origin}/" if parsed.port else f"{parsed.origin}/")
    assert prefix.contains(parsed)
