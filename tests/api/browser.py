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
from selenium.webdriver.common.keys import Keys
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


# The focused element's place on the page, and what hides it from the user.
_FOCUS = """
const node = document.activeElement;
if (node === document.body) return [null, "lost"];
const box = node.getClientRects()[0] ?? node.getBoundingClientRect();
const hasOutline = (part) => part && (part.controls || getComputedStyle(part).outlineStyle !== "none");
const middle = (low, high, size) => (Math.max(low, 0) + Math.min(high, size)) / 2;
const [x, y] = [middle(box.left, box.right, innerWidth), middle(box.top, box.bottom, innerHeight)];
const hit = document.elementFromPoint(x, y);
let problem = hasOutline(node) || hasOutline(node.closest(".pick, #search")) ? "" : "without an outline";
if (!hit || !(node.contains(hit) || hit.contains(node))) problem = "covered or outside the window";
const place = [box.left + scrollX, box.top + scrollY, box.right + scrollX, box.bottom + scrollY];
return [node.matches(".skip") ? null : place, problem && `${node.outerHTML.slice(0, 150)} is ${problem}`];
"""
_STOPS = 60  # of the Tab key


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
def screen_size(browser: WebDriver, width: int, height: int, zoom: int = 1) -> Iterator[None]:
    """Emulate a screen, in pixels of the zoomed page; one narrower than 500 pixels is a phone's."""
    is_phone = zoom == 1 and width < 500
    metrics = {"width": width, "height": height, "deviceScaleFactor": zoom, "mobile": is_phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


class Keyboard:
    """A user without a mouse, who must see the focus at every step, in the order of reading."""

    def __init__(self, browser: WebDriver) -> None:
        self.browser = browser

    def tab_to(self, css: str, *, back: bool = False) -> None:
        """Press Tab, or Shift and Tab, until an element has the focus."""
        previous: list[float] | None = None
        for _ in range(_STOPS):
            keys = ActionChains(self.browser)
            (
                keys.key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT)
                if back
                else keys.send_keys(Keys.TAB)
            ).perform()
            place, problem = self.browser.execute_script(_FOCUS)
            assert not problem, problem
            if place and previous:
                first, second = (place, previous) if back else (previous, place)
                assert second[2] > first[0] or second[3] > first[1], f"{css}: upwards and to the left"
            previous = place
            if self.is_on(css):
                return
        raise AssertionError(f"Tab does not reach {css}")

    def enter(self, *keys: str, focus: str) -> None:
        """Press keys and then Enter, and wait until the focus is visibly on an element."""
        press(self.browser, *keys, Keys.ENTER)
        wait_until(self.browser, lambda _: self.is_on(focus) and not self.browser.execute_script(_FOCUS)[1])

    def follow(self, css: str, shows: str, count: int = 1, *, back: bool = False) -> None:
        """Open a link, and wait for elements of its page."""
        self.tab_to(css, back=back)
        press(self.browser, Keys.ENTER)
        wait_for(self.browser, shows, count)

    def is_on(self, css: str) -> bool:
        """Whether the focused element matches a selector."""
        return bool(self.browser.execute_script("return document.activeElement.matches(arguments[0])", css))
