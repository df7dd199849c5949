"""Whole tasks by the keyboard alone, and all pages with zoom and without motion, in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from service.access.credentials import find_key
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.catalog.video_texts import store_texts
from service.celery_worker import probe
from service.tasks import commands
from tests.api.browser import Keyboard, find, press, screen_size, texts, wait_for, wait_for_texts, wait_until
from tests.api.learned_library import FIRST
from tests.api.pages.page_states import PAGES, open_state
from tests.catalog_rows import accepted_videos
from trainer.worker.learning_job import run_learning_job

pytestmark = pytest.mark.slow  # drives a browser

HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
PASSWORD = "correct horse battery"
# Parts that widen the page, controls that it covers or cuts off, and what moves by itself.
PROBLEMS = """
const width = document.documentElement.clientWidth, problems = [];
const say = (problem, node) => problems.push(`${problem}: ${node.outerHTML.slice(0, 150)}`);
const scrolls = (node) => node && (getComputedStyle(node).overflowX === "auto" || scrolls(node.parentElement));
if (document.scrollingElement.scrollWidth > width) say("scrolls sideways", document.body);
for (const node of document.querySelectorAll("body *:not(.skip)")) {
  const { left, right } = node.getBoundingClientRect();
  if (node.checkVisibility() && (left < -1 || right > width + 1) && !scrolls(node)) say("outside", node);
  for (const part of [null, "::before", "::after"]) {
    const style = getComputedStyle(node, part);
    if (style.animationName !== "none" || parseFloat(style.transitionDuration)) say("moves", node);
  }
  if (node.paused === false) say("plays", node);
}
const shown = document.querySelector("dialog[open], :popover-open") ?? document.body;
for (const node of shown.querySelectorAll(":is(a, button:enabled, input, select, summary, textarea):not(.skip)")) {
  if (!node.checkVisibility()) continue;
  node.scrollIntoView({ block: "center" });
  const { left, right, top, bottom } = node.getClientRects()[0];
  const hit = document.elementFromPoint((left + Math.min(right, width)) / 2, (top + bottom) / 2);
  if (!hit || !(node.contains(hit) || hit.contains(node))) say("covered", node);
  if (node.matches("button, select") && node.scrollWidth > node.clientWidth + 1) say("cut off", node);
}
return problems;
"""


def test_domain_is_added_searched_corrected_and_upgraded(
    browser: WebDriver, library: list[str], world: Path, tmp_path: Path, keyboard: Keyboard
) -> None:
    rows = ["file,caption,place"]
    for name, clip in zip(("harbor", "harborside", "canal"), (world / FIRST).glob("*.mp4"), strict=False):
        shutil.copy(clip, tmp_path / f"{name}.mp4")
        rows.append(f"{name}.mp4,a lantern at the {name},{name[:6]}")
    (tmp_path / "captions.csv").write_text("\n".join(rows))
    keyboard.follow("nav [href='/admin']", "#tasks > li", 2, back=True)
    keyboard.tab_to("#add")
    keyboard.enter(focus="#f-files")
    keyboard.tab_to("#f-folder")
    browser.switch_to.active_element.send_keys(str(tmp_path))  # the dialog of the system belongs to no page
    keyboard.tab_to("#f-name")
    press(browser, "lanterns")
    wait_until(browser, lambda b: "3 videos with 3 captions" in find(b, "#preview[aria-live]").text)
    wait_until(browser, lambda b: find(b, "#send").is_enabled())
    keyboard.tab_to("#send")
    keyboard.enter(focus="#add")
    wait_until(browser, lambda b: "“lanterns” was added" in find(b, "#tasks-done[role=status]").text)
    task = next(task.id for task in commands.list_tasks() if task.name == "lanterns")
    state = f"[data-task={task}] [role=status]"
    wait_until(browser, lambda b: texts(b, state) == ["lanterns:\nqueued"])
    keyboard.tab_to("[aria-label='Cancel lanterns']")
    probe(task)
    run_learning_job(task)
    wait_until(browser, lambda b: texts(b, state) == ["lanterns:\nready"])
    keyboard.tab_to("[aria-label='More actions for lanterns']")  # the button that had the focus is hidden
    keyboard.follow(f"[data-task={task}] .domain-link", "[data-testid=video]", 3, back=True)

    texts_of_video = {
        "speech": [(0.2, 0.6, "a foto diode"), (0.6, 0.9, HOSTILE)],
        "screen": [(0.0, 1.0, "platform 3b")],
    }
    with session_scope(write=True) as session:
        store_texts(session, {video.vector_id: texts_of_video for video in accepted_videos(task)})
        session.get_one(Task, task).backbone = "lite2"
    press(browser, "/")
    wait_for(browser, "#domains button", 4)
    keyboard.enter("lantern", focus="#q")
    wait_for(browser, "[data-testid=result]", 3)
    assert find(browser, "#facts [role=status]").text
    keyboard.tab_to("#skip-facets")
    keyboard.enter(focus=".play")
    press(browser, Keys.ENTER)
    wait_for(browser, ".frame.playing")
    keyboard.follow(".caption a", "#transcript-source option", 3)
    rows = wait_for_texts(browser, lines := "#transcript-list li > span:not(.cue-actions)", 3)
    assert rows == ["Read: platform 3b", "Heard: a foto diode", f"Heard: {HOSTILE}"]
    keyboard.tab_to("#transcript-source")
    press(browser, "H")
    wait_until(browser, lambda b: len(texts(b, lines)) == 2)
    keyboard.tab_to("[data-action=edit]")
    keyboard.enter(focus=".cue-form input")
    ActionChains(browser).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).perform()
    keyboard.enter("a photodiode", focus="[data-action=edit]")
    assert find(browser, "#done[role=status]").text == "The video was saved."
    keyboard.tab_to("[data-action=delete]")
    keyboard.enter(focus="[aria-label$='for good?']")
    keyboard.enter(focus="[data-action=edit]")
    assert texts(browser, lines) == ["Read: platform 3b", "Edited: a photodiode"]
    assert browser.title != "taken"

    keyboard.follow("#domain-link", "#upgrade-note button", back=True)
    keyboard.tab_to("#upgrade-note button")
    keyboard.enter(focus="#glance")
    assert find(browser, "#upgrade-note[role=status]").text.startswith("Upgrade to tiny: ")
    keyboard.follow(".crumbs a", "#tasks > li", 4, back=True)
    keyboard.tab_to("[aria-label^='Cancel lanterns (upgrade']")
    keyboard.enter(focus="section[aria-labelledby=h-tasks]")
    assert "is being cancelled" in find(browser, "#tasks-done").text


def test_access_is_managed_and_users_sign_in_and_out(
    browser: WebDriver, open_service: None, keyboard: Keyboard
) -> None:
    keyboard.follow("nav [href='/access']", "#audit tbody tr", back=True)
    keyboard.tab_to("#key-name")
    keyboard.enter("first", focus="#key-name")
    wait_until(browser, lambda b: "now requires a key" in find(b, "#failure[role=alert]").text)
    key = find(browser, "#created-key[role=status] code").text
    keyboard.follow("nav [href='/access']", ".login", back=True)
    keyboard.tab_to(".login summary")
    press(browser, Keys.ENTER)
    keyboard.tab_to("#key")
    keyboard.enter("nonsense", focus="#key[aria-describedby=wrong-key]")
    press(browser, key, Keys.ENTER)
    wait_for(browser, "[data-testid=key-first]")
    assert texts(browser, "nav [aria-current=page]") == ["Access"]
    keyboard.tab_to("#key-name")
    keyboard.enter("nightly", Keys.TAB, Keys.DOWN, Keys.TAB, "30", focus="#key-days")
    wait_for(browser, "[data-testid=key-nightly]")
    assert getattr(find_key(find(browser, "[data-testid=created-key]").text), "scope", None) == "ingest"
    keyboard.tab_to("[aria-label='Revoke the key nightly']")
    keyboard.enter(focus="[aria-labelledby=h-keys]")
    assert "revoked" in texts(browser, "[data-testid=key-nightly]")[0]
    keyboard.tab_to("#user-name")
    keyboard.enter("bob", Keys.TAB, PASSWORD, focus="#user-password")
    wait_until(browser, lambda b: _announced(b) == "The user bob was created.")
    keyboard.tab_to("[aria-label='Remove the user bob']")
    press(browser, Keys.ENTER)
    browser.switch_to.alert.accept()
    wait_until(browser, lambda b: _announced(b) == "The user bob was removed.")
    keyboard.tab_to("#audit-action")
    press(browser, "k")
    assert find(browser, "#audit-action").get_attribute("value") == "key"
    keyboard.tab_to("#audit-filter button")
    keyboard.enter(focus="#audit-filter button")
    wait_until(browser, lambda b: all(text.startswith("key.") for text in texts(b, "#audit td:nth-child(4)")))
    actions = texts(browser, "#audit td:nth-child(4)")
    assert texts(browser, "#audit-note[role=status]") == [f"{len(actions)} entries"]
    # The wrong key is recorded some seconds later, so it may be listed or not.
    assert [a for a in actions if a != "key.fail"] == ["key.revoke", "key.create", "key.create"]
    keyboard.tab_to(".tools form button", back=True)
    keyboard.enter(focus="#name")
    keyboard.enter("bob", Keys.TAB, PASSWORD, focus="#password[aria-describedby=wrong]")
    browser.get_log("browser")  # the refused attempts


def _announced(browser: WebDriver) -> str:
    return str(browser.execute_script("return document.querySelector('#done[role=status]').textContent"))


@pytest.mark.parametrize("page", PAGES)
def test_zoomed_page_fits_and_does_not_move(
    browser: WebDriver, address: str, library: list[str], page: str
) -> None:
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        for size in ((640, 400, 2), (320, 640, 4)):
            with screen_size(browser, *size):
                open_state(browser, address, library, page)
                assert browser.execute_script(PROBLEMS) == [], size
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
