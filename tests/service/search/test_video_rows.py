"""Rows of videos in their compact form."""

from __future__ import annotations

from service.search.catalog_read_cache import VideoRow, VideoRows

ROWS = [
    (
        3,
        VideoRow(
            "a",
            "place/Käfer 🪲.mp4",
            ["ein Käfer 🪲", "two\nlines"],
            1.5,
            {"place": "wood", "tags": ["x", "y"]},
        ),
    ),
    (7, VideoRow("b", "b.mp4", [], None, {})),
    (2**45, VideoRow("c", "upload://tsk_c/c.mp4", ["last"], 0.0, {"nested": {"n": 1}, "flag": True})),
]


def test_rows_are_found_by_vector_id() -> None:
    rows = VideoRows(ROWS)
    assert len(rows) == 3
    assert list(rows) == ROWS
    assert rows.find([7, 2**45, 4, 2**45 + 1, 0]) == {7: ROWS[1][1], 2**45: ROWS[2][1]}
    assert rows.find([]) == {}
    assert rows.nbytes > sum(len(row.video_id) for _, row in ROWS)


def test_domain_without_videos_has_no_rows() -> None:
    rows = VideoRows([])
    assert list(rows) == []
    assert rows.find([1, 2]) == {}
