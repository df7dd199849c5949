"""Omission of frames that are not displayed: the same pictures from fewer decoded frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.container import InputContainer
from av.video.stream import VideoStream

from media.frame_sampling import StreamExtent, frames_on_display, timed_frames
from media.video_limits import sample_times

COUNT, FPS = 48, 12
BIDIRECTIONAL = {"x264-params": "bframes=3:b-adapt=0:b-pyramid=normal:keyint=48:scenecut=0"}
REORDERED = {"x264-params": "bframes=8:b-adapt=0:b-pyramid=strict:keyint=24:scenecut=0:ref=4"}
INTERLACED = {"x264-params": "bframes=3:b-adapt=0:interlaced=1"}


def _noise(index: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(index)
    still = np.random.default_rng(0).integers(0, 256, (48, 64, 3))
    return np.roll(still, 2 * index, axis=1).clip(0, 240).astype(np.uint8) + rng.integers(
        0, 16, still.shape, np.uint8
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[InputContainer, VideoStream, StreamExtent]]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        yield container, stream, StreamExtent(COUNT / FPS, COUNT, stream.start_time)


def _expected(path: Path, times: list[float]) -> list[np.ndarray[Any, Any]]:
    """Return the frames on display, selected from all frames."""
    with _opened(path) as (container, stream, extent):
        frames = list(timed_frames(container, stream, extent))
        shown = [max((f for f in frames if f.begins <= at), key=lambda f: f.begins) for at in times]
        return [found.frame.to_ndarray(format="rgb24") for found in shown]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.ts"])
@pytest.mark.parametrize(
    "options", [BIDIRECTIONAL, REORDERED, INTERLACED], ids=["pyramid", "reordered", "interlaced"]
)
def test_frames_on_display_equal_those_of_complete_decoding(
    make_video: Callable[..., Path], name: str, options: dict[str, str]
) -> None:
    path = make_video(name, range(COUNT), fps=FPS, paint=_noise, codec_options=options)
    for samples in (1, 5, 8, 100):
        with _opened(path) as (container, stream, extent):
            times = sample_times(extent.duration, samples)
            found = [
                frame.to_ndarray(format="rgb24")
                for frame in frames_on_display(container, stream, extent, times, name)
            ]
        expected = _expected(path, times)
        assert len(found) == samples
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_frames_without_references_are_omitted(make_video: Callable[..., Path]) -> None:
    path = make_video("clip.mp4", range(COUNT), fps=FPS, paint=_noise, codec_options=BIDIRECTIONAL)
    decoded = []
    for times in ([], [2.0]):
        with _opened(path) as (container, stream, extent):
            decoded.append(sum(1 for _ in timed_frames(container, stream, extent, times)))
    complete, omitting = decoded
    assert complete == COUNT
    assert omitting < 0.8 * COUNT
