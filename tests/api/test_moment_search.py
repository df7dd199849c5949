"""A long video of two scenes: searches over HTTP return the moment that shows the described scene."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from fastapi.testclient import TestClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from api.app import create_app
from service.core.settings import Settings, settings
from service.tasks import commands
from tests.api.browser import serve
from tests.api.conftest import BASE_URL
from tests.api.learned_library import FIRST, SECOND, learn, read_manifest

SECONDS = 48  # 24 of each scene; windows are 16 s long and begin every 8


def _frames(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def _long(path: Path, scenes: list[Path]) -> None:
    """Return each scene played again and again for 24 seconds, at two frames a second."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=2)
        pictures = [_frames(scene) for scene in scenes]
        stream.height, stream.width = pictures[0][0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for number in range(2 * SECONDS):
            shown = pictures[number // SECONDS]
            picture = shown[len(shown) * (number % 8) // 8]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


@pytest.fixture(scope="module")
def moment_client(configured: Settings, world: Path) -> Iterator[TestClient]:
    """A task that was only indexed, with windows of 16 seconds: ``both`` shows first ``scene-0``, then ``scene-1``."""
    scenes = [read_manifest(world, domain)[0]["uri"] for domain in (FIRST, SECOND)]
    others = [video["uri"] for video in read_manifest(world, SECOND)[3:]]
    _long(world / "both.mp4", [world / uri for uri in scenes])
    _long(world / "other.mp4", [world / uri for uri in others[:2]])
    videos = [{"uri": f"{name}.mp4", "id": name} for name in ("both", "other")]
    for number, uri in enumerate([*scenes, *others]):  # their own names have words of the queries
        shutil.copy(world / uri, world / f"{number}.mp4")
        videos.append({"uri": f"{number}.mp4", "id": f"scene-{number}"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CINESTRATA_MOMENT_SECONDS", "16")
        settings.cache_clear()
        task = learn("scenes", videos, method="zero_shot", settings={})
        assert commands.get_task(task).state == "ready", commands.get_task(task).error
        with TestClient(create_app(settings()), base_url=BASE_URL, raise_server_exceptions=False) as client:
            client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
            yield client
    settings.cache_clear()


def _search(moment_client: TestClient, text: str, **fields: Any) -> dict[str, dict[str, Any]]:
    """Return the results by video ID."""
    results = moment_client.get("/search", params={"q": text, "k": 50, "moments": 10, **fields}).json()[
        "results"
    ]
    assert len({result["video_id"] for result in results}) == len(results)
    return {result["video_id"]: result for result in results}


@pytest.mark.slow
def test_page_shows_and_plays_the_best_moment(moment_client: TestClient, browser: WebDriver) -> None:
    moments = _search(moment_client, "a taxi", task="scenes")["both"]["moments"]

    def shown(css: str) -> list[WebElement]:
        return browser.find_elements(By.CSS_SELECTOR, css)

    def until(condition: Callable[[], Any]) -> None:
        WebDriverWait(browser, 30, 0.05).until(lambda _: condition())

    def clock(seconds: float) -> str:
        return f"0:{int(seconds):02}"

    with serve(moment_client.app) as address:
        browser.get(f"{address}/?q=a+taxi")
        until(lambda: shown("[data-video=both] [data-testid=time]"))
        start, end = moments[0]["start"], moments[0]["end"]
        (time,) = shown("[data-video=both] [data-testid=time]")
        assert time.get_property("textContent") == f"{clock(start)}–{clock(end)}"
        assert not shown("[data-video=scene-0] [data-testid=time]")
        webdriver.ActionChains(browser).move_to_element(shown("[data-video=both] .frame")[0]).perform()
        until(lambda: shown("[data-video=both] .playing video"))
        (video,) = shown("[data-video=both] video")
        until(lambda: video.get_property("currentTime") >= start)
        assert video.get_property("currentTime") < end
        browser.execute_script("arguments[0].currentTime = arguments[1]", video, end - 0.3)
        until(lambda: start <= video.get_property("currentTime") < end - 1)  # over and over
        shown("[data-video=both] .open")[0].click()
        until(lambda: len(shown("#player .moments button")) == 3)
        times = [button.get_property("textContent") for button in shown("#player .moments button")]
        assert times == [f"{clock(m['start'])}–{clock(m['end'])}" for m in moments[:3]]
        shown("#player .moments button")[2].click()
        (player,) = shown("#screen video")
        until(lambda: player.get_property("currentTime") >= moments[2]["start"])
        assert player.get_property("currentTime") < moments[2]["end"]
