"""Generated video files: distinct contents, few different pictures, and a bounded number of encoded clips."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.ingest.clip_files import write_ordinary_clips, write_tiny_clips
from benchmarks.ingest.ingest_cost import bare_frames
from media import VideoDecoder, content_hash, load_frames
from media.media_paths import frame_cache_path


@pytest.fixture
def tiny(tmp_path: Path) -> list[Path]:
    """Seven files of three different clips."""
    return [tmp_path / path for path in write_tiny_clips(tmp_path, 7, pictures=3)]


def test_tiny_clips_have_distinct_contents_and_repeat_their_pictures(tiny: list[Path]) -> None:
    assert len({content_hash(path) for path in tiny}) == len(tiny)
    pictures = [np.stack(bare_frames(path, 4)) for path in tiny]
    assert all(np.array_equal(pictures[index], pictures[index % 3]) for index in range(7))
    assert not np.array_equal(pictures[0], pictures[1])


def test_product_decodes_the_frames_of_the_bound(tiny: list[Path], tmp_path: Path) -> None:
    with VideoDecoder() as decoder:
        info = decoder.decode(tiny[0], frames=8, size=64, cache=tmp_path / "cache")
    cached = load_frames(frame_cache_path(tmp_path / "cache", 8, 64, info.content_hash))
    assert (info.width, info.height, info.duration) == (64, 64, 2.0)
    assert np.array_equal(cached, bare_frames(tiny[0], 8))  # the frames need no scaling


def test_new_files_leave_existing_files_unchanged(tiny: list[Path], tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny}
    assert [tmp_path / path for path in write_tiny_clips(tmp_path, 9, pictures=3)][:7] == tiny
    assert before == {path: path.stat().st_mtime_ns for path in tiny}


def test_too_many_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pictures: 401 is not between 1 and 400"):
        write_tiny_clips(tmp_path, 500, pictures=401)


def test_ordinary_clips_have_the_stated_size_and_duration(tmp_path: Path) -> None:
    (path,) = write_ordinary_clips(tmp_path / "clips", 1, seconds=0.4)
    with VideoDecoder() as decoder:
        info = decoder.decode(path, frames=1, size=8)
    assert (info.width, info.height, info.frames, info.codec) == (640, 360, 10, "h264")
