"""Signs in a new domain are read by the installed models, while the service runs and after a restart."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from cinestrata_client import Client
from tests.e2e.conftest import Machine

pytestmark = [
    pytest.mark.slow,  # starts the service and loads models
    pytest.mark.skipif(
        find_spec("rapidocr") is None or find_spec("faster_whisper") is None,
        reason="The packages that read videos are not installed",
    ),
]
FAST = {"CINESTRATA_BACKBONE": "tiny", "CINESTRATA_METHOD": "zero_shot", "CINESTRATA_READ": ""}
SIZE = (640, 360)


def _write_sign(path: Path, text: str) -> None:
    """Write a silent video of a sign, shown from the second second on."""
    blank = Image.new("RGB", SIZE, "white")
    sign = blank.copy()
    ImageDraw.Draw(sign).text((40, 150), text, "black", ImageFont.load_default(48))
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for number in range(24):
            picture = np.asarray(sign if number >= 8 else blank)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def test_signs_of_a_new_domain_are_read_and_found(machine: Machine, tmp_path: Path) -> None:
    signs = tmp_path / "signs"
    signs.mkdir()
    for number in range(6):
        _write_sign(signs / f"{number}.mp4", f"PLATFORM {number + 3}B")
    process, url = machine.up(tmp_path / "data", FAST)
    ingested = machine.run("ingest", signs, "--url", url)
    assert ingested.returncode == 0, ingested.stderr
    with Client(url) as client:
        (task,) = client.list_tasks()
        machine.until(lambda: client.get_reading(task.id).done, "a video is read")
    process.send_signal(signal.SIGTERM)  # a worker gives back what it has not read
    assert process.wait(120) == 0
    process, url = machine.up(tmp_path / "data", FAST)
    with Client(url) as client:
        machine.until(lambda: not client.get_reading(task.id).remaining, "all videos are read")
        videos = {video.uri.rpartition("/")[2]: client.get_video(video.id) for video in client.iter_videos()}
        for number in range(6):
            video = videos[f"{number}.mp4"]
            (cue,) = video.transcript
            assert (cue.source, cue.text) == ("screen", f"PLATFORM {number + 3}B")
            assert 1 <= cue.start <= 4 <= cue.end <= 6.5
            rows = {row.source: row for row in video.readings}
            assert (rows["speech"].state, rows["screen"].note) == ("done", None)
            assert "no sound" in (rows["speech"].note or "")
        # The server follows what a worker read once a second.
        sign = videos["4.mp4"].id
        machine.until(lambda: client.search("platform 7b").results[0].video_id == sign, "the sign is found")
    process.terminate()
    process.wait()
