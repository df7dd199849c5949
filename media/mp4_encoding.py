"""Encode frames as H.264 files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt


def encode_mp4(frames: npt.NDArray[np.uint8], path: Path, *, fps: int) -> None:
    """Write frames to an mp4 file (H.264, yuv420p, index before the data), which appears atomically.

    Args:
        frames: RGB, ``uint8 [count, height, width, 3]``, with even height and width; equal frames give equal files.
    """
    handle, temporary = tempfile.mkstemp(suffix=".mp4", prefix=".", dir=path.parent)
    os.close(handle)
    try:
        with av.open(temporary, "w", options={"movflags": "+faststart"}) as container:
            # One thread, since several processes encode at the same time. No mbtree, since its output varies between
            # runs, and equal clips must give equal files.
            options = {"preset": "veryfast", "crf": "21", "threads": "1", "x264-params": "mbtree=0"}
            stream = container.add_stream("libx264", rate=fps, options=options)
            stream.pix_fmt = "yuv420p"
            stream.height, stream.width = frames.shape[1:3]
            for picture in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
