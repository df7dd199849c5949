"""All pages are free of violations of WCAG 2.2 AA that axe-core finds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.remote.webdriver import WebDriver

from tests.api.browser import find, screen_size, wait_for
from tests.api.learned_library import FIRST

pytestmark = pytest.mark.slow  # drives a browser

AXE = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
CHECK = """
const done = arguments[0];
const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
axe.run(document, {runOnly: tags}).then(({violations}) => done(violations));
"""
SCREENS = [("laptop", 1440, 900), ("phone", 390, 844)]
SCHEMES = ["light", "dark"]


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


@pytest.mark.parametrize("page", PAGES)
def test_pages_violate_no_rule(
    browser: WebDriver, address: str, library: list[str], client: TestClient, page: str
) -> None:
    path, last, act = PAGES[page]
    video = client.get(f"/videos?task={FIRST}").json()["videos"][0]["id"]
    problems: list[str] = []
    try:
        for scheme, (screen, *size) in itertools.product(SCHEMES, SCREENS):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            # Colors are compared once animations have ended.
            features.append({"name": "prefers-reduced-motion", "value": "reduce"})
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            with screen_size(browser, *size):
                browser.get(address + path.format(task=library[0], video=video))
                wait_for(browser, last)
                if act:
                    act(browser)
                browser.execute_script(AXE.read_text(encoding="utf-8"))
                found: list[dict[str, Any]] = browser.execute_async_script(CHECK)
                problems += [
                    f"{scheme}, {screen}: {rule['id']}: {node['target']} {node['failureSummary']}"
                    for rule in found
                    for node in rule["nodes"]
                ]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.get_log("browser")  # the answer 404 of an unknown page
    assert not problems, "\n".join(problems)
