"""The page of a video that the browser cannot play says so, and links the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.library.video_listing import stream_path
from tests.api.browser import wait_for
from tests.catalog_rows import accepted_videos

pytestmark = pytest.mark.slow  # drives a browser


def _write(path: Path, codec: str, pixels: str, *, sound: bool = False) -> None:
    with av.open(str(path), "w", format="mov") as container:
        stream: Any = container.add_stream(codec, rate=4)
        stream.width = stream.height = 64
        stream.pix_fmt = pixels
        heard: Any = container.add_stream("aac", rate=8000) if sound else None
        for _ in range(8):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8))))
        container.mux(stream.encode(None))
        if heard:
            samples = av.AudioFrame.from_ndarray(
                np.zeros((1, 16_000), np.float32), format="fltp", layout="mono"
            )
            samples.sample_rate = 8000
            container.mux(heard.encode(samples))
            container.mux(heard.encode(None))


def _replace(number: int, library: list[str], codec: str, pixels: str, **how: bool) -> str:
    video = accepted_videos(library[0])[number].id
    with session_scope(write=True) as session:
        row = session.query(Video).filter_by(id=video).one()
        row.container, row.codec = (
            "mov",
            codec.removeprefix("lib").replace("x264", "h264").removesuffix("_ks"),
        )
    _write(stream_path(video), codec, pixels, **how)
    return video


@pytest.mark.parametrize("sound", [False, True])
def test_video_that_the_browser_cannot_play_is_linked(
    browser: WebDriver, address: str, library: list[str], sound: bool
) -> None:
    video = _replace(int(sound), library, "prores_ks", "yuv422p10le", sound=sound)
    browser.get(f"{address}/watch/{video}")
    wait_for(browser, "#screen a")
    assert "This browser can't play the file" in browser.find_element(By.ID, "screen").text
    link = browser.find_element(By.CSS_SELECTOR, "#screen a")
    assert link.get_attribute("href") == f"{address}/videos/{video}/stream"
    assert link.get_attribute("download") is not None
