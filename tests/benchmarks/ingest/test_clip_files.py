"""Generated video files have distinct contents, and the bound of decoding decodes what the product does."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.ingest.clip_files import write_tiny_clips
from benchmarks.ingest.ingest_cost import bare_frames
from media import VideoDecoder, content_hash, load_frames
from media.media_paths import frame_cache_path


def test_tiny_clips_have_distinct_contents_and_repeat_their_pictures(tmp_path: Path) -> None:
    tiny = [tmp_path / path for path in write_tiny_clips(tmp_path, 66)]
    assert len({content_hash(path) for path in tiny}) == len(tiny)
    first, second, again = (np.stack(bare_frames(tiny[number], 4)) for number in (0, 1, 64))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_product_decodes_the_frames_of_the_bound(tmp_path: Path) -> None:
    (tiny,) = write_tiny_clips(tmp_path, 1)
    with VideoDecoder() as decoder:
        info = decoder.decode(tmp_path / tiny, frames=8, size=64, cache=tmp_path / "cache")
    cached = load_frames(frame_cache_path(tmp_path / "cache", 8, 64, info.content_hash))
    assert (info.width, info.height, info.duration) == (64, 64, 2.0)
    assert np.array_equal(cached, bare_frames(tmp_path / tiny, 8))  # the frames need no scaling
