"""One library of all domains: texts that are stored, hidden videos, and domains that are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.errors import ProtocolError
from benchmarks.queries.library_videos import hide_videos, keep_first_captions, leave_out, read_domains
from benchmarks.queries.query_rivals import stored_text


def test_hidden_videos_have_no_text_at_all(query_folder: Path, tmp_path: Path) -> None:
    library = hide_videos(read_domains([query_folder], tmp_path / "media"), 0)
    assert list(library) == ["disks", "stripes"]
    for videos in library.values():
        assert [video.is_hidden for video in videos] == [False] * 8 + [True], "the test video is hidden"
        assert [len(video.stored) for video in videos] == [3] * 8 + [0]
        assert stored_text(videos[0], with_names=False) == " ".join(videos[0].captions)
        assert (stored_text(videos[-1], with_names=False), videos[-1].metadata) == ("", {})
        assert "red" not in videos[-1].uri
        assert all((tmp_path / "media" / video.uri).is_file() for video in videos)


def test_names_and_metadata_are_stored_on_request(query_folder: Path, tmp_path: Path) -> None:
    (_, *_, last) = read_domains([query_folder], tmp_path / "media", names=True)["disks"]
    assert stored_text(last, with_names=True) == "red-2 dim"


def test_a_copy_is_left_out_as_the_service_rejects_it(query_folder: Path, tmp_path: Path) -> None:
    folder = query_folder / "disks"
    (folder / "red-0.mp4").write_bytes((folder / "blue-0.mp4").read_bytes())
    library = read_domains([query_folder], tmp_path / "media")
    assert {name: len(videos) for name, videos in library.items()} == {"disks": 8, "stripes": 9}


def test_a_seed_hides_a_random_fifth_without_a_split_and_orders_the_domains(
    query_folder: Path, tmp_path: Path
) -> None:
    for manifest in query_folder.glob("*/manifest.jsonl"):
        manifest.write_text(manifest.read_text().replace(', "split": "test"', ""))
    domains = read_domains([query_folder], tmp_path / "media")
    seeds = [hide_videos(domains, seed) for seed in range(8)]
    hidden = [
        [video.id for part in library.values() for video in part if video.is_hidden] for library in seeds
    ]
    assert all(len(ids) == 2 for ids in hidden), "one of nine in each domain"
    assert len({tuple(sorted(ids)) for ids in hidden}) > 1
    assert {tuple(library) for library in seeds} == {("disks", "stripes"), ("stripes", "disks")}
    assert hide_videos(domains, 3) == seeds[3]


def test_variants_of_a_library(query_folder: Path, tmp_path: Path) -> None:
    library = hide_videos(read_domains([query_folder], tmp_path / "media"), 0)
    first = keep_first_captions(library)
    assert {video.stored for video in first["disks"]} == {
        *((video.captions[0],) for video in library["disks"][:-1]),
        (),
    }
    kept, left_out = leave_out(library, 0)
    assert len(kept) == len(left_out) == 1
    assert {**kept, **left_out} == library


def test_selected_domains(query_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="at least two domains"):
        read_domains([query_folder], tmp_path / "media", only=["disks"])
    with pytest.raises(ProtocolError, match=r"no domain circles; known: disks, stripes"):
        read_domains([query_folder], tmp_path / "media", excluded=["circles"])
