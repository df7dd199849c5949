"""Headline, reasons, corrections, clickable filters and verdicts of a text search, in a real browser.

Each test states the service's answer, so that it does not depend on what the learned domains contain.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from sqlalchemy import delete

from cinestrata_schemas.search import SearchQuery, SearchResponse
from service.catalog.database import session_scope
from service.catalog.tables import Reading, Video
from service.core.list_parameters import FeedbackFilters
from service.library.video_changes import list_feedback
from tests.api.browser import find, texts, wait_for, wait_until
from tests.api.learned_library import FIRST, SECOND
from tests.catalog_rows import accepted_videos, count_changes

pytestmark = pytest.mark.slow  # drives a browser

RESULT = "[data-testid=result]"
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"

Answer = dict[str, Any]
State = Callable[[Callable[[Answer], None]], list[SearchQuery]]


@pytest.fixture(scope="module", autouse=True)
def tagged(library: list[str]) -> None:
    """Metadata of every video: a place, a number and tags."""
    with session_scope(write=True) as session:
        videos = session.query(Video).order_by(Video.vector_id).all()
        for number, video in enumerate(videos):
            tags = ["red", "slow"] if number % 2 else ["red"]
            video.extra = {"place": ("kitchen", "street")[number % 2], "take": number % 3, "tags": tags}
        count_changes(session, videos)


@pytest.fixture
def state_answers(client: TestClient, library: list[str], monkeypatch: pytest.MonkeyPatch) -> State:
    """``state_answers(change)`` changes each response before it is sent, and returns the list of queries."""
    service = client.app.state.query_service  # type: ignore[attr-defined]
    search = service.search_async

    def state(change: Callable[[Answer], None]) -> list[SearchQuery]:
        queries = []

        async def changed(query: SearchQuery) -> SearchResponse:
            queries.append(query)
            answer = (await search(query)).model_dump()
            answer |= {"matches": None, "matching": None, "corrected": None, "facets": []}
            for result in answer["results"]:
                result |= {"matches": None, "words": []}
            change(answer)
            return SearchResponse.model_validate(answer)

        monkeypatch.setattr(service, "search_async", changed)
        return queries

    return state


def _match(answer: Answer, count: int, matching: int | None = None, confidence: float | None = None) -> None:
    """Let the first results match."""
    answer |= {
        "matches": count > 0,
        "matching": count if matching is None else matching,
        "confidence": confidence,
    }
    for place, result in enumerate(answer["results"]):
        result["matches"] = place < count


def _open(browser: WebDriver, address: str, **parameters: str) -> None:
    browser.get(f"{address}/?{urlencode({'q': 'a ball moves', **parameters})}")
    wait_for(browser, RESULT, 1)
    wait_until(browser, lambda b: find(b, "#answer").get_attribute("aria-busy") == "false")


def _shown(browser: WebDriver, css: str) -> str:
    return find(browser, css).text


def _parameters(browser: WebDriver) -> dict[str, list[str]]:
    return parse_qs(urlsplit(browser.current_url).query)


@pytest.mark.parametrize(("matching", "headline"), [(1, "1 video matches"), (12345, "12,345 videos match")])
def test_headline_counts_matching_videos_and_a_heading_precedes_the_others(
    browser: WebDriver, address: str, state_answers: State, matching: int, headline: str
) -> None:
    count = min(matching, 7)
    state_answers(lambda answer: _match(answer, count, matching))
    _open(browser, address)
    assert _shown(browser, "#headline") == headline
    assert not find(browser, "#headline-note").is_displayed()
    rows = browser.find_elements(By.CSS_SELECTOR, "#results > li")
    assert (rows[count].text, rows[count].get_attribute("class")) == ("Other videos", "answer-end")
    assert len(texts(browser, ".result.distant")) == 24 - count
    assert "%" not in _shown(browser, "#answer")


def test_text_without_match_is_told_and_can_be_searched_wider(
    browser: WebDriver, address: str, state_answers: State
) -> None:
    state_answers(lambda answer: _match(answer, 0, confidence=0.29))
    _open(browser, address, task=FIRST, min_duration="0.1")
    assert _shown(browser, "#headline") == "No video matches this query"
    assert "Check the spelling" in _shown(browser, "#headline-note")
    assert texts(browser, "#results .answer-end") == ["Most similar videos"]
    assert texts(browser, "#headline-note button") == ["Search all domains", "Remove the filters"]
    find(browser, "#headline-note button:last-child").click()
    wait_until(browser, lambda b: texts(b, "#headline-note button") == ["Search all domains"])
    find(browser, "#headline-note button").click()
    wait_until(browser, lambda b: set(_parameters(b)) == {"q"})
    wait_until(browser, lambda b: not texts(b, "#headline-note button"))


def test_text_without_match_may_be_said_in_videos_that_are_not_read(
    browser: WebDriver, address: str, state_answers: State, library: list[str]
) -> None:
    videos = accepted_videos(library[0])
    queued = [Reading(video_vector_id=video.vector_id, source="speech") for video in videos[:3]]
    with session_scope(write=True) as session:
        session.execute(delete(Reading))
        session.add_all(queued)
    state_answers(lambda answer: _match(answer, 0))
    for task in ("", FIRST):
        _open(browser, address, task=task)
        wait_until(browser, lambda b: "said or shown in 3 videos" in _shown(b, "#headline-note"))
    _open(browser, address, task=SECOND)
    assert "said or shown" not in _shown(browser, "#headline-note")
    with session_scope(write=True) as session:
        session.execute(delete(Reading))


def test_correction_is_told_and_the_typed_words_can_be_searched(
    browser: WebDriver, address: str, state_answers: State
) -> None:
    query, corrected = "red dumbell, kitchn", "red dumbbell, kitchen"
    again = 'red "dumbell" "kitchn"'

    def correct(answer: Answer) -> None:
        answer["corrected"] = corrected if answer["query"] == query else None

    queries = state_answers(correct)
    _open(browser, address, q=query, task=FIRST)
    told = _shown(browser, "#corrected")
    assert told.startswith(f"Showing results for {corrected}. No video has the word")
    assert "the words dumbell, kitchn." in told
    find(browser, "#corrected a").click()
    wait_until(browser, lambda b: queries[-1].q == again)
    assert _parameters(browser) == {"q": [again], "task": [FIRST]}
    wait_until(browser, lambda b: not find(b, "#corrected").is_displayed())


def test_cards_say_why_and_mark_the_words(browser: WebDriver, address: str, state_answers: State) -> None:
    reasons = [
        {"kind": "caption", "text": "🏀🏀 a ball, ÅÅ ball", "marks": [(5, 9), (14, 18)]},
        {"kind": "name", "text": "ball moves 0012", "marks": [(5, 10), (0, 4)]},
        {"kind": "metadata", "field": HOSTILE, "text": HOSTILE, "marks": [(1, 4)]},
        {"kind": "transcript", "text": "… the ball", "marks": [(6, 10)]},
        None,
        {"kind": "subtitle", "text": "a ball", "marks": [(2, 900)]},
        {"kind": "caption", "text": f"{'🏀 long ' * 30}ball rolls", "marks": [(210, 214)]},
    ]

    def explain(answer: Answer) -> None:
        _match(answer, len(reasons))
        for result, reason in zip(answer["results"], reasons, strict=False):
            result["words"] = [reason] if reason else []

    state_answers(explain)
    _open(browser, address)
    cards = browser.find_elements(By.CSS_SELECTOR, RESULT)
    assert find(cards[0], ".caption").text == "🏀🏀 a ball, ÅÅ ball"
    assert [find(card, ".why").text for card in cards[:7]] == [
        "Caption",
        "File name: ball moves 0012",
        f"<img src=x onerro…: {HOSTILE}",
        "Transcript: … the ball",
        "Visual match",
        "subtitle: a ball",
        "Caption",
    ]
    marked = [[mark.text for mark in card.find_elements(By.TAG_NAME, "mark")] for card in cards[:7]]
    assert marked == [["ball", "ball"], ["ball", "moves"], ["img"], ["ball"], [], ["ball"], ["ball"]]
    far = find(cards[6], ".caption a").text
    assert far == "… 🏀 long 🏀 long 🏀 long ball rolls", "the marked word is in the first line"
    assert not cards[7].find_elements(By.CSS_SELECTOR, ".why"), "a result below the cut-off"
    assert not browser.find_elements(By.CSS_SELECTOR, "#results img[src=x]")
    find(cards[2], ".open").click()
    wait_until(browser, lambda b: "Words found in" in _shown(b, "#player-facts"))
    assert texts(browser, "#player-facts mark") == ["img"]
    assert browser.title != "taken"


# -- clicked filters ---------------------------------------------------------------------------------------------


def _count_facets(answer: Answer) -> None:
    """Count facets over all videos in the library, as the service does."""
    tasks: dict[str, int] = {}
    for result in answer["results"]:
        tasks[result["task"]] = tasks.get(result["task"], 0) + 1
    answer["facets"] = [
        {"field": "task", "values": [{"value": task, "count": count} for task, count in tasks.items()]},
        {
            "field": "where.place",
            "values": [{"value": "kitchen", "count": 12}, {"value": "street", "count": 11}],
        },
        {"field": "where.take", "values": [{"value": take, "count": 8} for take in range(3)]},
        {"field": "where.tags", "values": [{"value": "red", "count": 24}, {"value": "slow", "count": 12}]},
        {"field": "where.__proto__", "values": [{"value": HOSTILE, "count": 1}]},
    ]


def _press(browser: WebDriver, group: str, value: str) -> None:
    find(browser, f".facet[aria-label='{group}'] [aria-label^='{value}']").click()
    wait_until(browser, lambda b: find(b, "#answer").get_attribute("aria-busy") == "false")


def _pressed(browser: WebDriver) -> list[str]:
    return texts(browser, ".facet [aria-pressed=true]")


def test_metadata_values_are_clicked_as_filters(
    browser: WebDriver, address: str, state_answers: State
) -> None:
    queries = state_answers(_count_facets)
    _open(browser, address)
    assert queries[-1].facets
    assert texts(browser, ".facet-name") == ["place", "take", "tags", "__proto__"]
    assert texts(browser, ".facet[aria-label=place] button") == ["kitchen\n12", "street\n11"]
    _press(browser, "place", "kitchen")
    wait_until(browser, lambda b: len(texts(b, RESULT)) == 12)
    assert queries[-1].where == {"place": "kitchen"}
    assert json.loads(_parameters(browser)["where"][0]) == {"place": "kitchen"}
    assert _shown(browser, "#filter summary") == "Filters · 1"
    focused = browser.execute_script("return document.activeElement.getAttribute('aria-label')")
    assert focused == "kitchen 12 videos", "the keyboard stays where it was"
    _press(browser, "tags", "red")
    _press(browser, "tags", "slow")
    _press(browser, "take", "2")
    wait_until(browser, lambda b: len(queries) == 5)
    assert queries[-1].where == {"place": "kitchen", "tags": {"all": ["red", "slow"]}, "take": 2}
    _press(browser, "tags", "red")
    _press(browser, "place", "kitchen")
    wait_until(browser, lambda b: len(queries) == 7)
    assert queries[-1].where == {"tags": "slow", "take": 2}
    browser.refresh()
    wait_for(browser, ".facet [aria-pressed=true]", 2)
    assert [text.split("\n")[0] for text in _pressed(browser)] == ["slow", "2"]
    browser.back()
    wait_for(browser, ".facet [aria-pressed=true]", 3)


def test_field_with_the_name_of_a_prototype_becomes_a_filter(
    browser: WebDriver, address: str, state_answers: State
) -> None:
    state_answers(_count_facets)
    _open(browser, address)
    find(browser, ".facet[aria-label=__proto__] button").click()
    wait_until(
        browser,
        lambda b: _parameters(b)["where"] == [json.dumps({"__proto__": HOSTILE}, separators=(",", ":"))],
    )
    wait_until(browser, lambda b: find(b, "#answer").get_attribute("aria-busy") == "false")
    browser.get_log("browser")  # no video has the field


HOSTILE_QUERY = "gramophone <img src=x onerror=\"document.title='taken'\">"


def _open_last(browser: WebDriver, address: str, text: str) -> WebElement:
    """Return the controls of the last result."""
    browser.get(f"{address}/?{urlencode({'q': text})}")
    wait_for(browser, RESULT, 1)
    wait_until(browser, lambda b: find(b, "#answer").get_attribute("aria-busy") == "false")
    return browser.find_elements(By.CSS_SELECTOR, f"{RESULT} .feedback")[-1]


def _shown_buttons(controls: WebElement) -> list[str]:
    buttons = controls.find_elements(By.TAG_NAME, "button")
    return [
        str(node.get_attribute("aria-label")).partition(":")[0] for node in buttons if node.is_displayed()
    ]


def test_result_is_confirmed_and_taken_back_by_keyboard(browser: WebDriver, address: str) -> None:
    controls = _open_last(browser, address, HOSTILE_QUERY)
    assert _shown_buttons(controls) == ["Right for this query", "Wrong for this query"]
    right = next(node for node in controls.find_elements(By.TAG_NAME, "button") if node.is_displayed())
    right.send_keys(Keys.ENTER)
    wait_until(browser, lambda b: _shown_buttons(controls) == ["Undo"])
    status = find(controls, "[role=status]")
    assert status.text == "Marked right"
    (entry,) = list_feedback(FeedbackFilters()).feedback
    assert (entry.text, entry.verdict) == (HOSTILE_QUERY, "right")
    assert browser.switch_to.active_element.text == "Undo"

    results = _open_last(browser, address, "gramophone").find_element(By.XPATH, "ancestor::ol|ancestor::ul")
    first = find(results, RESULT)
    assert first.get_attribute("data-video") == entry.video_id
    assert f"Feedback: {HOSTILE_QUERY}" in first.text
    assert browser.title != "taken"

    _open_last(browser, address, HOSTILE_QUERY)
    controls = next(
        find(node, ".feedback")
        for node in browser.find_elements(By.CSS_SELECTOR, RESULT)
        if node.get_attribute("data-video") == entry.video_id
    )
    wait_until(browser, lambda b: _shown_buttons(controls) == ["Undo"])
    assert find(controls, "[role=status]").text == "Marked right"
    find(controls, ".quiet").send_keys(Keys.SPACE)
    wait_until(browser, lambda b: len(_shown_buttons(controls)) == 2)
    assert list_feedback(FeedbackFilters()).feedback == []
