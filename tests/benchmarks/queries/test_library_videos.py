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
        (hidden,) = (video for video in videos if video.is_hidden)
        assert hidden.file.name == "green-2.mp4", "the only one whose SHA-256 is a multiple of 5"
        assert [len(video.stored) for video in videos] == [0 if video.is_hidden else 3 for video in videos]
        assert stored_text(videos[0], with_names=False) == " ".join(videos[0].captions)
        assert (stored_text(hidden, with_names=False), hidden.metadata) == ("", {})
        assert "green" not in hidden.uri
        assert all((tmp_path / "media" / video.uri).is_file() for video in videos)


def test_names_and_metadata_are_stored_on_request(query_folder: Path, tmp_path: Path) -> None:
    (_, *_, last) = read_domains([query_folder], tmp_path / "media", names=True)["disks"]
    assert stored_text(last, with_names=True) == "red-2 dim"


def test_a_copy_is_left_out_as_the_service_rejects_it(query_folder: Path, tmp_path: Path) -> None:
    folder = query_folder / "disks"
    (folder / "red-0.mp4").write_bytes((folder / "blue-0.mp4").read_bytes())
    library = read_domains([query_folder], tmp_path / "media")
    assert {name: len(videos) for name, videos in library.items()} == {"disks": 8, "stripes": 9}


@pytest.mark.parametrize(("share", "hidden"), [(0.05, 0), (0.5, 5), (0.9, 7)])
def test_a_share_is_hidden_by_file_name_and_a_seed_orders_the_domains(
    share: float, hidden: int, query_folder: Path, tmp_path: Path
) -> None:
    domains = read_domains([query_folder], tmp_path / "media")
    seeds = [hide_videos(domains, seed, share) for seed in range(8)]
    assert {tuple(library) for library in seeds} == {("disks", "stripes"), ("stripes", "disks")}
    ids = {frozenset(v.id for part in library.values() for v in part if v.is_hidden) for library in seeds}
    assert [len(part) for part in ids] == [2 * hidden], "the same in every seed; two videos keep captions"
    assert hide_videos(domains, 3, share) == seeds[3]


def test_variants_of_a_library(query_folder: Path, tmp_path: Path) -> None:
    library = hide_videos(read_domains([query_folder], tmp_path / "media"), 0)
    first = keep_first_captions(library)
    assert {video.stored for video in first["disks"]} == {
        *((video.captions[0],) for video in library["disks"] if not video.is_hidden),
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
