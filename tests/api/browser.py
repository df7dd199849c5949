"""Helpers for tests in a real browser."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

_T = TypeVar("_T")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # One process draws all pages: starting another one for each page costs more than the page.
    "--in-process-gpu",
    "--renderer-process-limit=1",
    "--disable-features=SpareRendererForSitePerProcess,IsolateOrigins,site-per-process,BackForwardCache",
    "--window-size=1440,900",
)

_HAVE_RISEN = """
return document.getAnimations().every((a) => a.animationName !== "rise" || a.playState === "finished");
"""


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serve an application whose query service has started, and yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        server.force_exit = True  # pages keep event streams open
        thread.join(timeout=10)


def find(place: WebDriver | WebElement, css: str) -> WebElement:
    """Return the first element that matches a selector."""
    return place.find_element(By.CSS_SELECTOR, css)


def press(browser: WebDriver, *keys: str) -> None:
    """Press keys, where the focus is."""
    ActionChains(browser).send_keys(*keys).perform()


def wait_until(browser: WebDriver, condition: Callable[[WebDriver], _T | None]) -> _T:
    """Wait for a condition and return its value; evaluate it again if an element was replaced in between."""
    wait = WebDriverWait(browser, 120, 0.05, ignored_exceptions=[StaleElementReferenceException])
    return wait.until(condition)


def wait_for(browser: WebDriver, css: str, count: int = 1) -> None:
    """Wait for a number of elements. To read their texts takes the browser longer than to draw them."""
    wait_until(browser, lambda b: len(b.find_elements(By.CSS_SELECTOR, css)) >= count)
    # Results are transparent when they begin to rise, and the driver reads no text of what can't be seen.
    wait_until(browser, lambda b: b.execute_script(_HAVE_RISEN))


def texts(browser: WebDriver, css: str) -> list[str]:
    """Return the texts of the elements that match a selector; read them again if one was replaced in between."""
    return wait_for_texts(browser, css, 0)


def wait_for_texts(browser: WebDriver, css: str, count: int = 1) -> list[str]:
    """Wait for a number of elements, and return their texts."""

    def read(browser: WebDriver) -> tuple[list[str]] | None:
        elements = browser.find_elements(By.CSS_SELECTOR, css)
        return ([element.text for element in elements],) if len(elements) >= count else None

    (found,) = wait_until(browser, read)
    return found


def refresh_library_page(browser: WebDriver) -> None:
    """Let the library page read the library's state now instead of after its interval."""
    browser.execute_script("document.dispatchEvent(new Event('visibilitychange'))")


@contextmanager
def screen_size(browser: WebDriver, width: int, height: int) -> Iterator[None]:
    """Emulate a screen; one narrower than 500 pixels is a phone's."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
