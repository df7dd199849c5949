"""The pages of a domain and of a video in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import av
import numpy as np
import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from sqlalchemy import select

from service.catalog.database import now, session_scope
from service.catalog.tables import Task, Video
from service.library.library_listing import stream_path
from tests.api.browser import find, press, texts, wait_for, wait_for_texts, wait_until
from tests.api.learned_library import FIRST
from tests.catalog_rows import accepted_videos

pytestmark = pytest.mark.slow  # drives a browser

QUERY = "a ball moves left"
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"


def _has_no_overflow(browser: WebDriver) -> bool:
    return bool(browser.execute_script("return document.documentElement.scrollWidth <= innerWidth"))


def _open_domain(browser: WebDriver, address: str, task: str) -> None:
    browser.get(f"{address}/domains/{task}")
    wait_for(browser, "[data-testid=video]")
    wait_for(browser, "[data-testid=confusion]")


def test_domain_page_shows_videos_queries_and_confusion(
    browser: WebDriver, address: str, client: TestClient, library: list[str]
) -> None:
    report = client.get(f"/tasks/{library[0]}/queries?worst=50").json()
    _open_domain(browser, address, library[0])
    assert browser.title == f"{FIRST} · Cinestrata"
    assert (find(browser, "h1").text, find(browser, "[data-testid=state]").text) == (FIRST, "ready")
    assert find(browser, "#count").text == "12"
    assert "6 held out" in find(browser, "#count-note").text
    assert len(texts(browser, "[data-testid=video]")) == 12
    everything, held_out = (report["measured"][name] for name in ("global_all", "global"))
    assert find(browser, "#found").text == f"{100 * everything['r1']:.0f} %"
    note = find(browser, "#found-note").text
    assert note.startswith(
        f"of {everything['queries']} held-out captions (too few for a reliable share), among all"
    )
    assert f"held-out videos of all domains: {100 * held_out['r1']:.0f} % first" in note
    shown = texts(browser, "#confusion .share-value")
    assert shown == [f"{100 * part['share']:.0f} % ({part['queries']})" for part in report["first_results"]]
    assert "held-out captions" in find(browser, "#queries-note").text
    rows = browser.find_elements(By.CSS_SELECTOR, "[data-testid=worst-query]")
    assert len(rows) == min(5, len(report["worst"])) > 0
    worst = report["worst"][0]
    expected_rank = f"Rank {worst['rank']}" if worst["rank"] else "Not among 100"
    assert find(rows[0], ".pill").text == expected_rank
    assert find(rows[0], ".worst-caption").text == worst["caption"]
    assert len(rows[0].find_elements(By.CSS_SELECTOR, ".instead img")) == 3
    if len(report["worst"]) > 5:
        find(browser, "#more-queries-button").click()
        assert len(texts(browser, "[data-testid=worst-query]")) == len(report["worst"])
    assert not find(browser, "#rejected").is_displayed()
    outside = browser.execute_script(
        "const names = [...document.querySelectorAll('.caption a, .tile-text .badge span:last-child')];"
        "for (const name of names) name.textContent = 'a_name_without_spaces_'.repeat(5);"
        "const right = (node) => node.getBoundingClientRect().right;"
        "return names.filter((name) => right(name) > right(name.closest('li, .tile')) + 1).length"
    )
    assert outside == 0, "long names stay in their cards"


def test_upgrade_is_offered_and_its_recall_shown_until_it_is_accepted(
    browser: WebDriver, address: str, library: list[str]
) -> None:
    upgrade = {"status": "undoable", "release": "r", "method": "analytic", "settings": {}, "backbone": "tiny"}
    progress = {"stage": "ready", "upgrade": {**upgrade, "r1_before": 0.41, "r1_after": 0.443}}
    with session_scope(write=True) as session:
        session.get_one(Task, library[0]).backbone = "lite2"
        row = Task(id="tsk_up", position=0, name="up", method="analytic", target_id=library[0], upgrades=True)
        row.state, row.progress, row.created_at = "ready", progress, now(session)
        row.undo = {"columns": {}, "appended": []}
        session.add(row)
    _open_domain(browser, address, library[0])
    lines = wait_for_texts(browser, "#upgrade-note div", 1)
    assert [" ".join(line.split()) for line in lines] == ["Upgraded from tiny: recall@1 41.0 % → 44.3 %."]
    buttons = texts(browser, "#upgrade-note button")
    assert buttons[:2] == ["Undo the upgrade", "Keep it"]
    assert buttons[2].startswith("Upgrade to ")
    find(browser, "#upgrade-note button:nth-of-type(2)").click()
    wait_until(browser, lambda _: len(texts(browser, "#upgrade-note button")) == 1)
    with session_scope(write=True) as session:
        session.get_one(Task, library[0]).backbone = None
        for task in session.scalars(select(Task).where(Task.upgrades)):
            session.delete(task)


def test_videos_are_appended_from_the_page_of_the_domain(
    browser: WebDriver, address: str, library: list[str]
) -> None:
    _open_domain(browser, address, library[1])
    find(browser, "#append-link").click()
    wait_until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "#dialog[open]"))
    wait_until(browser, lambda b: find(b, "#f-into").get_attribute("value") == library[1])
    assert find(browser, "#send").text == "Append videos"
    assert "into" not in browser.current_url


def test_result_leads_to_the_page_that_explains_it(
    browser: WebDriver, address: str, client: TestClient, library: list[str]
) -> None:
    browser.get(f"{address}/?{urlencode({'q': QUERY})}")
    wait_for(browser, "[data-testid=result]", 24)
    card = browser.find_elements(By.CSS_SELECTOR, "[data-testid=result]")[1]
    video = card.get_attribute("data-video")
    rank = find(card, ".rank").text
    find(card, ".caption a").click()
    wait_for(browser, ".score-parts dt", 6)
    expected = client.get(f"/videos/{video}/explanation", params={"q": QUERY}).json()
    parts = dict(zip(texts(browser, ".score-parts dt"), texts(browser, ".score-parts dt + dd"), strict=True))
    assert parts["Rank"] == rank
    assert parts["Score"] == f"{expected['score']:.3f}".replace("-", "−")
    assert parts["Visual"] == f"{expected['visual_term']:.3f}".replace("-", "−")
    assert parts["Words"] == f"{expected['words_term']:.3f}".replace("-", "−")
    assert [text.split()[0] for text in texts(browser, ".words li")] == QUERY.split()
    details = client.get(f"/videos/{video}").json()
    assert find(browser, "#title").text == details["captions"][0]
    assert texts(browser, "#captions li") == details["captions"]
    assert len(wait_for_texts(browser, "#similar [data-testid=result]", 8)) == 8
    find(browser, "#why-query a").click()
    wait_for(browser, "[data-testid=result]", 24)
    assert find(browser, "#q").get_attribute("value") == QUERY


def test_video_starts_where_the_words_are_said(
    browser: WebDriver, address: str, client: TestClient, library: list[str]
) -> None:
    video = accepted_videos(library[0])[0].id
    said = {"start": 0.4, "end": 0.8, "text": f"the quasar {HOSTILE}"}
    later = [{"start": n, "end": n + 1, "text": f"minute {n}"} for n in range(2, 2002)]
    assert client.patch(f"/videos/{video}", json={"transcript": [said, *later]}).status_code == 200
    client.get("/search", params={"q": "quasar"})  # awaits its own edit, which others may see a second later
    try:
        browser.get(f"{address}/?q=quasar")
        wait_for(browser, "[data-testid=result]")
        assert find(browser, ".result .why").text == f"Transcript at 0:00: the quasar {HOSTILE}"
        assert find(browser, ".result .time").text == "0:00–0:00"
        browser.get(f"{address}/watch/{video}?q=quasar")
        wait_for(browser, "#transcript [aria-current]")
        assert find(browser, "#transcript [aria-current]").text == f"0:00\nthe quasar {HOSTILE}\nEdit\nDelete"
        assert texts(browser, ".words li") == ["quasar\nin other texts of the video"]
        time = "return document.querySelector('#screen video').currentTime"
        wait_until(browser, lambda b: b.execute_script(time) == 0.4)
        rows = "return document.querySelectorAll('#transcript-list li').length"
        first = browser.execute_script(rows)
        assert first < 500
        browser.execute_script("document.getElementById('transcript-list').scrollTop = 1e6")
        wait_until(browser, lambda b: first < b.execute_script(rows) < 1000)
        browser.execute_script("document.querySelector('#screen video').currentTime = 0")
        find(browser, "#transcript [aria-current] button").click()
        wait_until(browser, lambda b: b.execute_script(time) >= 0.4)
        assert browser.title != "taken"
        assert _has_no_overflow(browser)
    finally:
        client.patch(f"/videos/{video}", json={"transcript": None})


def test_unknown_id_is_an_error_with_a_way_back(browser: WebDriver, address: str) -> None:
    for path, kind in (("domains/nowhere", "domain"), ("watch/nothing", "video")):
        browser.get(f"{address}/{path}")
        wait_until(browser, lambda b: find(b, "#missing").is_displayed())
        assert find(browser, "#missing strong").text == f"This {kind} doesn't exist."
        assert find(browser, "#missing a").is_displayed()
    browser.get_log("browser")  # the browser logs the 404


def test_captions_and_metadata_are_edited_by_keyboard(
    browser: WebDriver, address: str, client: TestClient, library: list[str]
) -> None:
    _open_domain(browser, address, library[1])
    card = find(browser, "[data-testid=video]")
    video = card.get_attribute("data-video") or ""
    before = client.get(f"/videos/{video}").json()
    browser.execute_script("arguments[0].focus()", find(card, ".edit"))
    press(browser, Keys.ENTER)
    wait_until(browser, lambda b: find(b, "#edit-dialog textarea").is_displayed())
    assert browser.execute_script("return document.activeElement.value") == before["captions"][0]
    browser.execute_script("document.activeElement.select()")
    press(browser, HOSTILE)
    find(browser, "#edit-dialog fieldset:nth-of-type(2) .add-row").click()
    press(browser, "year", Keys.TAB, "7", Keys.ENTER)
    wait_until(browser, lambda b: not b.find_elements(By.ID, "edit-dialog"))
    saved = client.get(f"/videos/{video}").json()
    assert saved["captions"] == [HOSTILE, *before["captions"][1:]]
    assert saved["metadata"] == {**before["metadata"], "year": 7}
    wait_until(browser, lambda b: HOSTILE in find(b, f"[data-video='{video}'] .caption").text)
    assert (
        browser.execute_script("return document.activeElement.getAttribute('aria-label')")
        == f"Edit {HOSTILE}"
    )
    assert not browser.find_elements(By.CSS_SELECTOR, "img[src=x]")
    assert "was saved" in find(browser, "#done").text
    client.patch(f"/videos/{video}", json={"captions": before["captions"], "metadata": {"year": None}})
    assert client.get(f"/videos/{video}").json() == before


def test_invalid_edit_is_shown_at_its_field_and_a_stale_one_is_refused(
    browser: WebDriver, address: str, client: TestClient, library: list[str]
) -> None:
    video = accepted_videos(library[1])[1].id
    before = client.get(f"/videos/{video}").json()
    browser.get(f"{address}/watch/{video}")
    wait_until(browser, lambda b: find(b, "#edit").is_displayed())
    find(browser, "#edit").click()
    wait_until(browser, lambda b: find(b, "#edit-dialog textarea").is_displayed())
    browser.execute_script("document.activeElement.value = 'x'.repeat(5000)")
    find(browser, "#edit-dialog [type=submit]").click()
    wait_until(browser, lambda b: texts(b, "#edit-dialog .field-error"))
    assert find(browser, "#edit-dialog [aria-invalid]").tag_name == "textarea"
    browser.get_log("browser")  # the browser logs the refused request
    client.patch(f"/videos/{video}", json={"captions": ["changed elsewhere"]})
    browser.execute_script("document.activeElement.value = 'mine'")
    find(browser, "#edit-dialog [type=submit]").click()
    wait_until(browser, lambda b: "has changed in the meantime" in find(b, "#edit-dialog [role=alert]").text)
    assert client.get(f"/videos/{video}").json()["captions"] == ["changed elsewhere"]
    browser.get_log("browser")
    press(browser, Keys.ESCAPE)
    wait_until(browser, lambda b: not b.find_elements(By.ID, "edit-dialog"))
    assert browser.execute_script("return document.activeElement.id") == "edit"
    client.patch(f"/videos/{video}", json={"captions": before["captions"]})


def test_rejected_videos_are_listed_with_their_reasons(
    browser: WebDriver, address: str, library: list[str]
) -> None:
    fields = {"task_id": library[1], "status": "rejected", "captions": [], "extra": {}}
    with session_scope(write=True) as session:
        for number in range(51):
            session.add(
                Video(id=f"broken-{number}", uri=f"{HOSTILE}{number}", reason="The file is empty.", **fields)
            )
    try:
        _open_domain(browser, address, library[1])
        wait_for(browser, "[data-testid=rejected]", 50)
        assert find(browser, "#rejected-list li").text.splitlines() == [f"{HOSTILE}0", "The file is empty."]
        find(browser, "#more-rejected-button").click()
        wait_for(browser, "[data-testid=rejected]", 51)
        assert not find(browser, "#more-rejected").is_displayed()
    finally:
        with session_scope(write=True) as session:
            session.query(Video).filter(Video.id.like("broken-%")).delete()


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
    video = _replace(-1 - int(sound), library, "prores_ks", "yuv422p10le", sound=sound)
    browser.get(f"{address}/watch/{video}")
    wait_for(browser, "#screen a")
    assert "This browser can't play the file" in find(browser, "#screen").text
    link = find(browser, "#screen a")
    assert link.get_attribute("href") == f"{address}/videos/{video}/stream"
    assert link.get_attribute("download") is not None
