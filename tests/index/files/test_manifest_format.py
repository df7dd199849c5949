"""The manifest: round trips, and detection of altered files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.errors import ManifestError
from index.files.durable_files import replace_text
from index.files.manifest_format import SCHEMA, Manifest, ReleaseEntry, SegmentEntry, content_id
from index.shard_store import ShardStore

_words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
_counts = st.integers(0, 2**62)
_files = st.dictionaries(
    st.sampled_from(["vectors.faiss", "ids.npy", "shard.json", "weights"]), _words, min_size=1
)


@st.composite
def _releases(draw: st.DrawFn) -> ReleaseEntry:
    files = draw(_files)
    return ReleaseEntry(content_id(files), draw(_counts), files)


@st.composite
def _shards(draw: st.DrawFn) -> SegmentEntry:
    files = draw(_files)
    words, counts = st.tuples(_words, _words, _words), st.tuples(*[_counts] * 5)
    return SegmentEntry(content_id(files), *draw(words), *draw(counts), files)


@st.composite
def _manifests(draw: st.DrawFn) -> Manifest:
    releases = draw(st.lists(_releases(), max_size=3))
    shards = draw(st.lists(_shards(), max_size=3))
    return Manifest(
        generation=draw(_counts),
        created=draw(_words),
        release=draw(st.none() | _words),
        releases={entry.id: entry for entry in releases},
        shards={entry.task: entry for entry in shards},
    )


@given(manifest=_manifests())
def test_round_trip_keeps_entries_and_their_order(manifest: Manifest) -> None:
    read = Manifest.loads(manifest.dumps())
    assert read == manifest
    assert list(read.shards) == list(manifest.shards)
    assert read.dumps() == manifest.dumps()


@given(manifest=_manifests(), data=st.data())
def test_any_changed_character_is_detected(manifest: Manifest, data: st.DataObject) -> None:
    text = manifest.dumps()
    index = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda c: c != text[index]))
    try:
        read = Manifest.loads(text[:index] + other + text[index + 1 :])
    except ManifestError:
        return
    assert read == manifest  # white space between fields has no meaning


def _altered(**fields: Any) -> str:
    return json.dumps({**json.loads(Manifest().dumps()), **fields})


def _checked(**fields: Any) -> str:
    """Write a manifest with other fields and its own checksum."""
    body = json.loads(_altered(**fields))
    del body["checksum"]
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "checksum": checksum})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *(
            (text, "is not a manifest")
            for text in ("", "{", "[]", "null", "7", '{"schema": 1}', '{"checksum": "x"}', "[" * 100_000)
        ),
        ("\udcff", "not text"),
        (_altered(schema=SCHEMA + 1), "use the version that wrote it"),
        (_altered(generation=7), "its checksum is wrong"),
        (_checked(releases={"some id": {"id": "some id"}}), "lacks a field"),
    ],
)
def test_invalid_manifest_raises(store: ShardStore, text: str, problem: str) -> None:
    store.root.mkdir()
    store.manifest_path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ManifestError, match=rf"manifest\.json .*{problem}"):
        store.manifest()


@pytest.mark.parametrize(
    "release",
    [
        ReleaseEntry("../../etc", 1, {"passwd": "0"}),
        *(
            ReleaseEntry(content_id({name: "0"}), 1, {name: "0"})
            for name in ("../../passwd", "/etc/passwd", "..")
        ),
    ],
)
def test_manifest_rejects_files_outside_its_folders(release: ReleaseEntry) -> None:
    hostile = Manifest(generation=1, release=release.id, releases={release.id: release}).dumps()
    with pytest.raises(ManifestError, match="does not match its files"):
        Manifest.loads(hostile)


def test_manifest_is_empty_before_first_publication(store: ShardStore) -> None:
    assert store.manifest() == Manifest()
    assert not store.root.exists()  # reading creates nothing


def test_writer_does_not_read_its_own_manifest_but_that_of_another(store: ShardStore) -> None:
    store.root.mkdir(parents=True)
    with patch.object(Manifest, "loads", side_effect=AssertionError):
        published = store.replace_manifest(Manifest(), Manifest())
        assert store.manifest() is published
    other = replace(published, generation=9)
    replace_text(store.manifest_path, other.dumps())
    assert store.manifest() == other
