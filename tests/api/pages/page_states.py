"""Pages and their states, which the tests of accessibility, zoom and motion open."""

from __future__ import annotations

from collections.abc import Callable

from selenium.webdriver.remote.webdriver import WebDriver

from tests.api.browser import find, wait_for
from tests.catalog_rows import accepted_videos


def _open_dialog(browser: WebDriver) -> None:
    find(browser, "#add").click()


def _open_menu(browser: WebDriver) -> None:
    find(browser, "#tasks [aria-label^=More]").click()


def _open_player(browser: WebDriver) -> None:
    find(browser, ".frame .play").click()


# Page or state of a page: path, element that is shown at last, and what opens the state.
PAGES: dict[str, tuple[str, str, Callable[[WebDriver], None] | None]] = {
    "empty search": ("/", "#domains button", None),
    "results": ("/?q=moves", "[data-testid=result]", None),
    "player": ("/?q=moves", "[data-testid=result]", _open_player),
    "no results": ("/?q=zzzz", "#timing", None),
    "library": ("/admin", "#releases tbody tr", None),
    "menu of a domain": ("/admin", "#tasks li", _open_menu),
    "add a domain": ("/admin", "#tasks li", _open_dialog),
    "domain": ("/domains/{task}", "#video-grid li", None),
    "video": ("/watch/{video}", "#similar-grid li", None),
    "access": ("/access", "h1", None),
    "reference": ("/docs", "h1", None),
    "sign in": ("/login", "#name", None),
    "unknown page": ("/nowhere", "h1", None),
}


def open_state(browser: WebDriver, address: str, library: list[str], page: str) -> None:
    """Open a page in one of its states."""
    path, last, act = PAGES[page]
    browser.get(address + path.format(task=library[0], video=accepted_videos(library[0])[0].id))
    wait_for(browser, last)
    if act:
        act(browser)
    if page == "unknown page":
        browser.get_log("browser")  # the answer 404
