"""Encoded mp4 files of the video world."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from benchmarks.data.world import make_domain, render, write_mp4
from media import sample_times


def test_mp4_decodes_to_the_rendered_frames(tmp_path: Path) -> None:
    clip = make_domain("night-traffic", seed=0, train=0, val=0, test=1)[0]
    path = tmp_path / "clip.mp4"
    write_mp4(clip, path)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        assert (stream.width, stream.height) == (192, 192)
        assert float(container.duration / av.time_base) == pytest.approx(3.0, abs=0.11)
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
    assert len(frames) == 30
    drawn = render(clip.scene, size=192, times=sample_times(1.0, 30))
    assert np.abs(frames.astype(np.int16) - drawn).mean() < 6
    # The index precedes the data, so that a browser can start to play before the download ends.
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    assert list(tmp_path.iterdir()) == [path]


def test_equal_clips_give_equal_files(tmp_path: Path) -> None:
    # One of the demo clips that x264 encodes differently from run to run with its default options.
    clips = make_domain("microscope", seed=7, train=16, val=4, test=40, categories=3)
    clip = next(clip for clip in clips if clip.id == "microscope-7-cell-test-025")
    files = [tmp_path / f"{number}.mp4" for number in range(6)]
    for file in files:
        write_mp4(clip, file)
    assert len({file.read_bytes() for file in files}) == 1


def test_mp4_has_the_given_size_and_length(tmp_path: Path) -> None:
    clip = make_domain("radar", seed=0, train=0, val=0, test=1)[0]
    write_mp4(clip, tmp_path / "a.mp4", size=64, fps=5, seconds=1.2)
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 6
    with pytest.raises(ValueError, match="even"):
        write_mp4(clip, tmp_path / "b.mp4", size=63)
    with pytest.raises(ValueError, match="at least 1"):
        write_mp4(clip, tmp_path / "b.mp4", seconds=0)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    clip = make_domain("radar", seed=0, train=0, val=0, test=1)[0]
    target = tmp_path / "taken.mp4"
    target.mkdir()
    with pytest.raises(OSError, match=r"taken"):
        write_mp4(clip, target, size=32, seconds=0.2)
    assert list(tmp_path.iterdir()) == [target]
