"""Matching table rows to files: paths are compared from their ends, and IDs without suffix."""

from __future__ import annotations

import pytest

from service.tasks.manifests.video_files import FileMatcher


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
    ("row", "found"),
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
def test_paths_are_compared_from_their_ends(row: str, found: list[str]) -> None:
    paths = ["b/a.mp4", "top.mp4", "same.mp4", "table/same.mp4", "1/s.mp4", "s.mp4"]
    assert FileMatcher(paths).find(row, "table") == found


def test_rows_of_deep_paths_are_compared_by_their_last_folders() -> None:
    """Each folder of a row costs a lookup with a path of up to 4 KB."""
    matcher = FileMatcher(["clips/a.mp4", "/".join(["x"] * 100) + "/b.mp4"])
    assert matcher.find("x/" * 2000 + "clips/a.mp4") == ["clips/a.mp4"]
    assert matcher.find("x/" * 100 + "b.mp4") == ["x/" * 100 + "b.mp4"]
    assert matcher.find("x/" * 2000 + "b.mp4") == []


@pytest.mark.parametrize(
    ("row", "found"),
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
def test_ids_and_names_of_uploads_find_their_files(row: str, found: list[str]) -> None:
    names = "clips/video0.mp4 video0.txt two.avi two.mp4 clips/a.b.webm notes.txt top.mp4 1111aaaa-kept.mp4 kept.mp4"
    assert FileMatcher(names.split()).find(row) == found
