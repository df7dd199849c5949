"""Fixtures that write real video and audio files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

MakeVideo = Callable[..., Path]


@pytest.fixture
def make_video(tmp_path: Path) -> MakeVideo:
    """Writes a video of plain gray frames; the gray level identifies the frame."""

    def make(
        name: str,
        grays: Sequence[int] = (16, 48, 80, 112, 144, 176, 208, 240),
        *,
        codec: str = "libx264",
        size: tuple[int, int] = (64, 48),
        fps: int = 4,
        milliseconds: Sequence[int] | None = None,
        pixels: str = "yuv420p",
        aspect: Fraction | None = None,
        rotate: int = 0,
        mirror: dict[str, bool] | None = None,
        options: dict[str, str] | None = None,
        codec_options: dict[str, str] | None = None,
        paint: Callable[[int], np.ndarray[Any, Any]] | None = None,
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w", options=options or {}) as container:
            stream: Any = container.add_stream(codec, rate=fps, options=codec_options or {})
            stream.width, stream.height = size
            stream.pix_fmt = pixels
            if aspect:
                stream.codec_context.sample_aspect_ratio = aspect
            if rotate or mirror:
                stream.set_display_rotation(rotate, **(mirror or {}))
            if milliseconds is not None:
                stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
            for index, gray in enumerate(grays):
                picture = paint(index) if paint else np.full((size[1], size[0], 3), gray, np.uint8)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                if milliseconds is not None:
                    frame.pts, frame.time_base = milliseconds[index], Fraction(1, 1000)
                    following = milliseconds[index + 1 :] or [milliseconds[index] + 1000]
                    frame.duration = following[0] - milliseconds[index]
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        return path

    return make


@pytest.fixture
def make_audio(tmp_path: Path) -> MakeVideo:
    """Writes a file with sound only."""

    def make(name: str) -> Path:
        path = tmp_path / name
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("aac", rate=16000)
            stream.layout = "mono"
            for index in range(8):
                frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
                frame.sample_rate, frame.pts = 16000, index * 1024
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        return path

    return make
