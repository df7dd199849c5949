"""All pages are free of violations of WCAG 2.2 AA that axe-core finds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.remote.webdriver import WebDriver

from tests.api.browser import screen_size
from tests.api.pages.page_states import PAGES, open_state

pytestmark = pytest.mark.slow  # drives a browser

AXE = Path(__file__).parents[3] / "node_modules" / "axe-core" / "axe.min.js"
CHECK = """
const done = arguments[0];
const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
axe.run(document, {runOnly: tags}).then(({violations}) => done(violations));
"""
SCREENS = [("laptop", 1440, 900), ("phone", 390, 844)]
SCHEMES = ["light", "dark"]


@pytest.mark.parametrize("page", PAGES)
def test_pages_violate_no_rule(browser: WebDriver, address: str, library: list[str], page: str) -> None:
    problems: list[str] = []
    try:
        for scheme, (screen, *size) in itertools.product(SCHEMES, SCREENS):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            # Colors are compared once animations have ended.
            features.append({"name": "prefers-reduced-motion", "value": "reduce"})
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            with screen_size(browser, *size):
                open_state(browser, address, library, page)
                browser.execute_script(AXE.read_text(encoding="utf-8"))
                found: list[dict[str, Any]] = browser.execute_async_script(CHECK)
                problems += [
                    f"{scheme}, {screen}: {rule['id']}: {node['target']} {node['failureSummary']}"
                    for rule in found
                    for node in rule["nodes"]
                ]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert not problems, "\n".join(problems)
