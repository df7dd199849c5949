"""Positions of videos' tasks."""

from __future__ import annotations

import numpy as np
import pytest

from service.search.words.domain_captions import VideoPositions


@pytest.mark.parametrize("scale", [1, 10**9])
def test_videos_are_located_among_dense_and_scattered_ids(scale: int) -> None:
    tasks = [np.array([5, 8]) * scale, np.array([], np.int64), np.array([6, 30]) * scale]
    positions = VideoPositions(tasks)
    assert positions.videos.tolist() == [5 * scale, 6 * scale, 8 * scale, 30 * scale]
    wanted = np.array([30, 5, 7, 6, 4, 31, 8, 0, -3, 1 << 20]) * scale
    located = positions.locate(wanted)
    assert (located.dtype, located.tolist()) == (np.int32, [2, 0, -1, 2, -1, -1, 0, -1, -1, -1])
    assert positions.locate(np.array([], np.int64)).tolist() == []


def test_empty_snapshot_contains_no_video() -> None:
    for tasks in ([], [np.array([], np.int64)]):
        positions = VideoPositions(tasks)
        assert len(positions.videos) == 0
        assert positions.locate(np.array([0, 1, 5])).tolist() == [-1, -1, -1]
