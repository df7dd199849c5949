"""Windows of moments, and sampling of frames at given times in long videos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from media import MediaError, VideoDecoder, VideoLimits, moment_windows

MakeVideo = Callable[..., Path]


@pytest.fixture(scope="module")
def decoder() -> Iterator[VideoDecoder]:
    with VideoDecoder(VideoLimits()) as decoder:
        yield decoder


# -- windows ------------------------------------------------------------------------------------------------


@given(
    duration=st.floats(0.001, 20_000),
    seconds=st.floats(1, 100),
    overlap=st.floats(0, 0.9),
    most=st.integers(2, 600),
)
def test_moment_windows_cover_video_evenly(
    duration: float, seconds: float, overlap: float, most: int
) -> None:
    windows = moment_windows(duration, seconds, overlap, most)
    if duration <= seconds:
        assert windows == []
        return
    if not windows:
        assert duration == pytest.approx(seconds), "a rounding error does not lengthen the duration"
        return
    assert 2 <= len(windows) <= most
    starts, ends = np.array(windows).T
    assert starts[0] == 0
    assert ends[-1] == pytest.approx(duration)
    assert ends.max() <= duration
    lengths = ends - starts
    assert lengths == pytest.approx(np.full(len(windows), lengths[0]))
    assert (ends[:-1] - starts[1:]) / lengths[0] == pytest.approx(
        np.full(len(windows) - 1, overlap), abs=1e-6
    )
    if len(windows) < most:
        assert lengths[0] <= seconds * (1 + 1e-6)
        longer = duration / (1 + (len(windows) - 2) * (1 - overlap))  # if there were one window less
        assert longer > seconds * (1 - 1e-6)


# -- frames -------------------------------------------------------------------------------------------------

GRAYS = range(100)  # one frame a second


def _paint(second: int) -> np.ndarray[Any, Any]:
    """Return a frame whose left half shows the tens of the second as a gray level, and the right half the ones."""
    picture = np.empty((48, 64, 3), np.uint8)
    picture[:, :32], picture[:, 32:] = 20 + 20 * (second // 10), 20 + 20 * (second % 10)
    return picture


def _seconds(path: Path) -> list[int]:
    """Return the second that each frame of a file shows."""
    frames = np.load(path).astype(float)
    tens, ones = (
        np.rint((frames[:, :, half].mean(axis=(1, 2, 3)) - 20) / 20) for half in (slice(3), slice(5, 8))
    )
    return [int(second) for second in 10 * tens + ones]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [1, 7, 1000], ids="a key frame every {} seconds".format)
@pytest.mark.parametrize("name", ["long.mp4", "long.mkv"])
def test_frames_on_display_are_found_by_seeking(
    make_video: MakeVideo, tmp_path: Path, decoder: VideoDecoder, name: str, keys: int
) -> None:
    path = make_video(name, GRAYS, fps=1, paint=_paint, codec_options={"g": str(keys), "sc_threshold": "0"})
    into = tmp_path / "frames.npy"
    sparse = [0.5, 1.5, 2.5, 40.5, 41.5, 42.5, 99.5]
    for times in (sparse, [80.5, 80.5, 81.5, 95.5], [second + 0.5 for second in range(100)], [33.5]):
        decoder.sample(path, times=times, size=8, into=into)
        assert np.load(into, mmap_mode="r").shape == (len(times), 8, 8, 3)
        assert _seconds(into) == [int(time) for time in times]
        assert list(tmp_path.glob(".*")) == []


def test_sampled_frames_are_cropped_like_those_of_decode(
    make_video: MakeVideo, tmp_path: Path, decoder: VideoDecoder
) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (8, 48, 64, 3), dtype=np.uint8)
    path = make_video("clip.mp4", paint=lambda index: pictures[index])
    info = decoder.decode(path, frames=4, size=16, cache=tmp_path / "cache")
    decoder.sample(path, times=[0.25, 0.75, 1.25, 1.75], size=16, into=tmp_path / "frames.npy")
    whole = tmp_path / "cache" / "4x16" / f"{info.content_hash}.npy"
    assert (tmp_path / "frames.npy").read_bytes() == whole.read_bytes()


def test_failed_sample_raises_and_leaves_no_file(
    make_video: MakeVideo, tmp_path: Path, decoder: VideoDecoder
) -> None:
    path, into = make_video("clip.mp4", GRAYS, fps=1), tmp_path / "frames.npy"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(MediaError, match=r"the third video .*damaged"):
        decoder.sample(path, times=[0.5], size=8, into=into, name="the third video")
    with pytest.raises(MediaError, match="cannot be read"):
        decoder.sample(tmp_path / "gone.mp4", times=[0.5], size=8, into=into)
    assert not into.exists()
    (tmp_path / "a file").touch()
    with pytest.raises(OSError, match="cannot be stored") as full:
        decoder.sample(make_video("whole.mp4"), times=[0.5], size=8, into=tmp_path / "a file" / "frames.npy")
    assert not isinstance(full.value, MediaError)
    assert list(tmp_path.glob(".*")) == []
