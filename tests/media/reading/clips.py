"""Videos with text in the picture and with sound."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Lines = list[tuple[tuple[int, int], str]]
RATE = 16000


def draw(lines: Lines, size: tuple[int, int] = (640, 360), font: int = 22) -> npt.NDArray[np.uint8]:
    """Draw lines of dark text on a light picture."""
    picture = Image.new("RGB", size, (240, 240, 245))
    for place, text in lines:
        ImageDraw.Draw(picture).text(place, text, (20, 20, 30), font=ImageFont.load_default(font))
    return np.asarray(picture)


def write_clip(
    path: Path,
    pictures: list[npt.NDArray[np.uint8]],
    sounds: tuple[npt.NDArray[np.float32], ...] = (),
    *,
    rotate: int = 0,
    layout: str = "mono",
    rate: int = RATE,
) -> Path:
    """Write a video of pictures, each shown for half a second, and of sound tracks."""
    with av.open(str(path), "w") as container:
        video: Any = container.add_stream("libx264", rate=2)
        video.height, video.width = pictures[0].shape[:2]
        video.pix_fmt = "yuv420p"
        if rotate:
            video.set_display_rotation(rotate)
        tracks: list[Any] = []
        for _ in sounds:
            track: Any = container.add_stream("pcm_s16le", rate=rate)
            track.layout = layout
            tracks.append(track)
        for picture in pictures:
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode(None))
        for track, sound in zip(tracks, sounds, strict=True):
            samples = (np.clip(sound, -1, 1) * 32767).astype(np.int16)
            channels = len(track.layout.channels)
            frame = av.AudioFrame.from_ndarray(np.repeat(samples, channels)[None], "s16", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
            container.mux(track.encode(frame))
            container.mux(track.encode(None))
    return path
