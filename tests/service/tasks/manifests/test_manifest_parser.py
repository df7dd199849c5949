"""Manifests as text: delimiters, encodings, column names, merged rows, and lines that are refused by their number."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cinestrata_schemas.tasks import VideoSpec
from service.core import request_limits
from service.core.errors import InvalidInput
from service.tasks.manifests import text_files
from service.tasks.manifests.caption_tables import CaptionTables, read_rows


def parse(content: str | bytes, name: str = "manifest.csv", encoding: str = "utf-8") -> list[VideoSpec]:
    """Merge all rows of a manifest, without looking for the files of its videos."""
    raw = content.encode() if isinstance(content, str) else content
    entries = CaptionTables(list)
    for location, fields in read_rows(io.BytesIO(raw), name, encoding).rows:
        entries.add_row(location, fields)
    return entries.videos()


def refusal(content: str | bytes, name: str = "manifest.csv", encoding: str = "utf-8") -> str:
    with pytest.raises(InvalidInput) as caught:
        parse(content, name, encoding)
    return str(caught.value)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_delimiter_follows_from_the_header(delimiter: str, end: str, mark: str) -> None:
    head = ["file", "caption", "Place, floor; room"]
    rows = [head, ["a.mp4", "eggs, milk; one", "hall"], ["b.mp4", "Küche", ""]]
    lines = [delimiter.join(f'"{cell}"' if set(",;") & set(cell) else cell for cell in row) for row in rows]
    first, second = parse(mark + end.join(lines), "list.tsv" if delimiter == "\t" else "list.csv")
    assert (first.uri, first.captions) == ("a.mp4", ["eggs, milk; one"])
    assert first.metadata == {"Place, floor; room": "hall"}
    assert (second.captions, second.metadata) == (["Küche"], None)


@pytest.mark.parametrize("file", ["file", "FileName", "path", "Video", " uri "])
@pytest.mark.parametrize("caption", ["Caption", "captions", "TEXT", "description"])
def test_columns_have_several_names(file: str, caption: str) -> None:
    (video,) = parse(f"{caption},{file},ID,Split\none|two,a.mp4,x,test\n")
    assert (video.uri, video.captions, video.id, video.split) == ("a.mp4", ["one", "two"], "x", "test")


def test_objects_have_the_same_names_if_they_have_no_uri() -> None:
    assert parse('{"File": "a.mp4", "caption": "a | b"}', "m.jsonl")[0].captions == ["a | b"]
    assert parse('{"uri": "a.mp4", "text": "x"}', "m.jsonl")[0].metadata == {"text": "x"}
    given = '{"uri": "a.mp4", "source": "cam 3", "license": "MIT", "metadata": {"source": "given"}}'
    assert parse(given, "m.jsonl")[0].metadata == {"source": "given", "license": "MIT"}
    assert "'file' and 'path' have the same meaning" in refusal('{"file": "a", "path": "b"}', "m.jsonl")


def test_columns_of_one_meaning_are_refused() -> None:
    message = refusal("file,caption,Text\n")
    assert "manifest.csv:1: The columns 'caption' and 'Text' have the same meaning" in message
    assert "'File' and 'uri'" in refusal("File,uri\n")
    assert "'place' and 'place'" in refusal("file,place,place\n")


def test_text_that_is_not_utf8_names_the_line_and_the_option() -> None:
    raw = "file;caption\na.mp4;plain\nb.mp4;Küche\nc.mp4;Öl\n".encode("cp1252")
    message = refusal(raw)
    assert "manifest.csv:3: Byte 8 of the line is not UTF-8" in message
    assert "--encoding cp1252" in message
    assert [video.captions for video in parse(raw, encoding="cp1252")] == [["plain"], ["Küche"], ["Öl"]]
    assert "manifest.csv:1: Byte 6 of the line is not CP1252" in refusal(b"file,\x81", encoding="cp1252")
    for unsupported in ("utf-16", "rot13", "no such", "\0", "idna", "utf-7", "hz", "raw_unicode_escape"):
        assert "not supported" in refusal(raw, encoding=unsupported)


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "content",
    [
        "file,text\na.mp4,Küche\n",
        '\n{"file": "a.mp4", "text": "Küche"}',
        '[{"file": "a.mp4",\n"text": "Küche"}]',
    ],
)
def test_byte_order_mark_selects_the_encoding(mark: str, content: str) -> None:
    raw = content.encode(mark) if mark in ("utf-8-sig", "utf-16") else ("\ufeff" + content).encode(mark)
    assert parse(raw, encoding="cp1252")[0].captions == ["Küche"]
    assert "is not UTF-16" in refusal(("\ufeff" + content).encode("utf-16-le") + b"\x00\xd8")


def test_rows_of_a_file_are_merged() -> None:
    first, second = parse(
        "file,caption,id,place\na.mp4,one,,\nb.mp4,other,,\n./a.mp4,two,x,hall\n,,,\n\na.mp4,one|three,x,\n"
    )
    assert (first.uri, first.captions, first.id) == ("a.mp4", ["one", "two", "three"], "x")
    assert first.metadata == {"place": "hall"}
    assert second.captions == ["other"]
    (video,) = parse('{"uri": "a.mp4", "captions": ["x"]}\n{"uri": "a.mp4", "captions": ["y"]}', "m.jsonl")
    assert video.captions == ["x", "y"]


@pytest.mark.parametrize("column", ["id", "split", "place"])
def test_contradicting_rows_name_both_lines(column: str) -> None:
    message = refusal(f"file,{column}\na.mp4,train\nb.mp4,val\n\na.mp4,test\n")
    assert f"manifest.csv:5: '{column}' of 'a.mp4' differs from its row at manifest.csv:2" in message


def test_captions_of_a_file_are_limited() -> None:
    rows = [f"a.mp4,caption {number}\n" for number in range(request_limits.MAX_CAPTIONS + 2)]
    (video,) = parse("file,caption\n" + "".join(rows[:-2]))
    assert len(video.captions) == request_limits.MAX_CAPTIONS
    message = refusal("file,caption\n" + "".join(rows))
    assert f"manifest.csv:{request_limits.MAX_CAPTIONS + 2}: 'a.mp4' has more than" in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "name,caption\na.mp4,x\n",
            "or 'uri' of files, and none of IDs such as 'video_id'; the columns are 'name', 'caption'",
        ),
        ("\nfile,caption\n\na.mp4,x,y\n", ":4: There are more cells than columns"),
        ("file,caption\n,x\n", ":2.uri"),
        ("file,split\na.mp4,x\n", ":2.split"),
        ("file,caption\na.mp4,a\0b\n", ":2: The line contains a NUL"),
        ('file,caption\n\'a\',"b\nc"\nb.mp4,"x\n' + "y\n" * 9, ":4: The row that begins here"),
        ('file,caption\na.mp4,"' + "x\n" * 100_000, ":2: The row that begins here"),
        ('file,caption\na.mp4,"x" y\n', ":2: The row that begins here"),
        ('"file\n', ":1: The row that begins here"),
        ('file,caption\n"a\nb.mp4",x\n', ":2.uri: The path contains a control character"),
    ],
)
def test_bad_line_of_a_table_is_named(content: str, expected: str) -> None:
    assert expected in refusal(content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"uri": "a.mp4"}\n\n{"uri": ', ":3: The line is not JSON"),
        ('{"a": ' * 100_000, "nested too deep"),
        ("[" * 100_000, "nested too deep"),
        ('{"uri": "a.mp4"}\n' + '{"a": ' * 100_000, ":2: The line is nested too deeply"),
        ('{"uri": "a.mp4", "split": "val", "split": "test"}', ":1: An object has the key 'split' twice"),
        ('{"uri": "a.mp4", "n": ' + "9" * 5000 + "}", "number with too many digits"),
        ('{"uri": "a.mp4", "n": 1e999}', ":1.metadata: A number is not finite"),
        ('{"uri": "a.mp4", "n": NaN}', ":1.metadata: A number is not finite"),
        ('{"uri": "a.mp4"}\n{"captions": ["x"]}', ":2.uri"),
        ('{"uri": "a\\u0000.mp4"}', ":1.uri: The path contains a control character"),
        ('{"uri": "a.mp4", "captions": 3}', ":1.captions"),
        ("3", ":1"),
    ],
)
def test_bad_object_is_named(content: str, expected: str) -> None:
    assert expected in refusal(content, "m.jsonl")


@pytest.mark.parametrize("name", ["manifest.parquet", "Clips.XLSX"])
def test_typed_tables_are_refused(name: str) -> None:
    assert f"doesn't read '{name}'" in refusal("file,caption\na.mp4,x\n", name)


@pytest.mark.parametrize(
    ("name", "head", "line"),
    [
        ("manifest.csv", "file,caption\n", "a.mp4,%s\n"),
        ("manifest.jsonl", "", '{"uri": "a.mp4", "captions": ["%s"]}\n'),
    ],
)
def test_long_line_is_refused(name: str, head: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 1000)
    longest = "x" * (1000 - len(line % ""))
    assert [video.captions for video in parse(head + line % longest, name)] == [[longest]]
    assert "longer than 1000 bytes" in refusal(head + line % f"{longest}x", name)
    assert "longer than 1000 bytes" in refusal(b"file" + b"," * 2000, name)


def test_lines_after_more_videos_than_a_task_may_have_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_VIDEOS_PER_TASK", 1000)
    rows = [b'{"uri": "%d.mp4", "captions": ["x"]}\n' % number for number in range(1001)]
    message = refusal(b"".join([*rows, b"no JSON\n"]), "manifest.jsonl")
    assert "manifest.jsonl:1001: The previous rows name 1000 other videos" in message
    assert len(parse(b"".join(rows[:1000] * 2), "manifest.jsonl")) == 1000


@pytest.mark.parametrize(
    ("name", "head", "line"),
    [
        ("manifest.csv", b"file\n", b"a.mp4\n"),
        ("manifest.csv", b"file\n", b"a.mp4\r"),
        ("manifest.csv", b"", b"\n"),
        ("manifest.csv", b"", b"\r"),
        ("manifest.jsonl", b"", b'{"uri": "a.mp4"}\n'),
        ("manifest.jsonl", b"", b"\n"),
    ],
)
def test_lines_of_a_manifest_are_limited(
    name: str, head: bytes, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the same file and empty lines are no videos, but take time."""
    monkeypatch.setattr(request_limits, "MAX_TEXT_LINES", 1000)
    with pytest.raises(InvalidInput, match=r"more than 1000 lines"):
        parse(head + 1001 * line, name)


@pytest.mark.slow
def test_large_metadata_is_refused_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one video, and of all videos: both are refused while the manifest is read."""
    large = json.dumps({"uri": "b.mp4", "metadata": {"x": [[]] * 10_000}}).encode()
    with pytest.raises(InvalidInput, match=r"manifest\.jsonl:2\.metadata: It takes"):
        parse(b'{"uri": "a.mp4"}\n' + large, "manifest.jsonl")
    line = '{"uri": "%d.mp4", "x": "' + "y" * 16_000 + '"}\n'
    with pytest.raises(InvalidInput, match="Split the manifest"):
        parse("".join(line % number for number in range(4200)), "manifest.jsonl")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = st.sampled_from(["uri", "captions", "caption", "id", "split", "metadata", "file", "x"])
_OBJECTS = st.dictionaries(_FIELDS, _JSON, max_size=5)
_CELLS = st.text(st.sampled_from("ab.mp4/\\\"',;|\t\n\r\x00\ufeff\ud7ff é"), max_size=12)
_MANIFESTS = (
    st.tuples(st.binary(max_size=300), st.sampled_from(["manifest.jsonl", "manifest.csv", "manifest.tsv"]))
    | st.tuples(
        st.lists(_OBJECTS | _JSON, max_size=4).map(lambda rows: "\n".join(map(json.dumps, rows)).encode()),
        st.just("manifest.jsonl"),
    )
    | st.tuples(
        st.lists(st.lists(_CELLS, max_size=4), max_size=5).map(
            lambda rows: "\n".join(["file,caption,split,id", *(",".join(row) for row in rows)]).encode()
        ),
        st.sampled_from(["manifest.csv", "manifest.tsv"]),
    )
)


@pytest.mark.slow
@hypothesis_settings(max_examples=300)
@given(manifest=_MANIFESTS, encoding=st.sampled_from(["utf-8", "latin-1", "utf-16"]))
def test_any_manifest_is_read_or_refused(manifest: tuple[bytes, str], encoding: str) -> None:
    content, name = manifest
    try:
        videos = parse(content, name, encoding)
    except InvalidInput as error:
        str(error).encode()  # errors are sent as JSON
    else:
        assert all(json.loads(video.model_dump_json()) for video in videos)
