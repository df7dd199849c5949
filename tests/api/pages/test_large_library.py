"""Catalogs with many learned domains and realistic measures, without videos on disk.

Recall falls a little after each release, more for a few domains, and less within the own shard than among all shards;
the first of 40 domains is indexed without captions, and each seventh domain was appended to.
"""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from sqlalchemy import insert

from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry, content_id
from models.encoders.families.low_rank_family import LOW_RANK_FAMILY
from service.catalog.database import session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import Recall, Release, Shard, Task
from service.core.settings import Settings, settings
from service.core.text_rules import make_slug, name_key
from tests.api.browser import serve, texts, wait_for, wait_until

_TOPICS = (
    "cooking",
    "traffic",
    "football",
    "pottery",
    "surgery",
    "wildlife",
    "drone flights",
    "screen casts",
)
_PLACES = ("Lisbon", "Oslo", "Kyoto", "Quito", "Accra", "Perth", "Graz", "Tromsø", "Hanoi")
_GALLERIES = {
    "local": 0.0,
    "global": 0.22,
    "local_all": 0.06,
    "global_all": 0.3,
}  # recall that distractors cost
_MODES = {"pinned": 0.0, "latest": 0.004}  # recall that a release costs
_FORGOTTEN = 17  # each such domain loses much more


def fill_library(domains: int, *, seed: int = 7) -> None:
    """Write learned domains with releases, shards and recall cells into the catalog of this process.

    Args:
        domains: Number of domains.
        seed: Seed of the measures.
    """
    rng = np.random.default_rng(seed)
    start = datetime.now(UTC) - timedelta(hours=domains)
    upgrade(settings())
    settings().index_dir.mkdir(parents=True, exist_ok=True)
    settings().media_root.mkdir(parents=True, exist_ok=True)
    (settings().index_dir / "manifest.json").write_text(_manifest(domains, start).dumps())
    with session_scope(write=True) as session:
        orders = range(1, domains + 1)
        session.execute(insert(Task), [_task(order, start) for order in orders])
        session.execute(insert(Release), [_release(order, start) for order in orders])
        session.execute(insert(Shard), [_shard(order, start) for order in orders])
        for mode, loss in _MODES.items():
            session.execute(insert(Recall), list(_cells(domains, mode, loss, rng)))


def _name(order: int) -> str:
    topic, place = _TOPICS[order % len(_TOPICS)], _PLACES[order % len(_PLACES)]
    return f"{topic} {place.encode('ascii', 'ignore').decode()} {order}"


def _task(order: int, start: datetime) -> dict[str, object]:
    at = start + timedelta(hours=order)
    is_silent = order % 40 == 1 and order > 1
    counts = {"videos": 120, "accepted": 118, "rejected": 2, "train": 90, "val": 8, "test": 20}
    return {
        "id": f"tsk_{order:05d}",
        "position": order,
        "name": _name(order),
        "name_key": name_key(_name(order)),
        "slug": make_slug(_name(order)),
        "method": "strata",
        "settings": {},
        "state": "ready",
        "progress": {"stage": "ready", "fraction": 1.0},
        "counts": counts | {"appended": 12 if order % 7 == 0 else 0},
        "attempts": 0,
        "fencing_token": 1,
        "cancel_requested": False,
        "created_at": at - timedelta(minutes=40),
        "started_at": at - timedelta(minutes=38),
        "finished_at": at,
        "probed_at": at - timedelta(minutes=35),
        "release_id": _folder_id("release", order),
        "learned_order": order,
        "trained": not is_silent,
        "held_out": "derived" if order % 3 else "given",
    }


def _release(order: int, start: datetime) -> dict[str, object]:
    return {
        "id": _folder_id("release", order),
        "task_id": f"tsk_{order:05d}",
        "learned_order": order,
        "method": "strata",
        "backbone": "open_clip:ViT-B-32/openai",
        "kind": LOW_RANK_FAMILY.kind,
        "fingerprint": f"{order:064x}",
        "bytes": 4_700_000 + 9_000 * order,
        "created_at": start + timedelta(hours=order),
        "metrics": {"calibration_error": 0.02 + 0.001 * (order % 13)},
    }


def _shard(order: int, start: datetime) -> dict[str, object]:
    return {
        "id": _folder_id("shard", order),
        "task_id": f"tsk_{order:05d}",
        "release_id": _folder_id("release", order),
        "fingerprint": f"{order:064x}",
        "count": 118,
        "dim": 512,
        "bytes": 260_000,
        "created_at": start + timedelta(hours=order),
    }


def _manifest(domains: int, start: datetime) -> Manifest:
    releases = [_folder_id("release", order) for order in range(1, domains + 1)]
    return Manifest(
        generation=domains,
        created=start.isoformat(),
        release=releases[-1],
        releases={
            release: ReleaseEntry(release, 4_700_000, _files("release", order))
            for order, release in enumerate(releases, 1)
        },
        shards={
            f"tsk_{order:05d}": SegmentEntry(
                id=_folder_id("shard", order),
                task=f"tsk_{order:05d}",
                release=release,
                fingerprint=f"{order:064x}",
                count=118,
                dim=512,
                first_id=1000 * order,
                last_id=1000 * order + 117,
                bytes=260_000,
                files=_files("shard", order),
            )
            for order, release in enumerate(releases, 1)
        },
    )


def _files(kind: str, order: int) -> dict[str, str]:
    names = {
        "release": ("release.json", "adapters.safetensors"),
        "shard": ("shard.json", "vectors.faiss", "ids.npy"),
    }
    return {name: f"{order:064x}" for name in names[kind]}


def _folder_id(kind: str, order: int) -> str:
    return content_id(_files(kind, order))


def _cells(domains: int, mode: str, loss: float, rng: np.random.Generator) -> Iterator[dict[str, object]]:
    for gallery, distraction in _GALLERIES.items():
        for task in range(1, domains + 1):
            if task % 40 == 1 and task > 1:
                continue
            queries = int(rng.integers(20, 400))
            learned = rng.beta(8, 4)
            forgotten = 0.35 if task % _FORGOTTEN == 5 and gallery.startswith("global") else 0.0
            orders = [0] if gallery == "local" and mode == "pinned" else []
            for release in [*orders, *range(task, domains + 1)]:
                age = (release - task) / max(20, domains) if release else 0.0
                expected = learned - loss * min(release - task, 60) - (distraction + forgotten) * age**0.5
                expected = 0.12 if release == 0 else expected
                hits = rng.binomial(queries, min(0.99, max(0.02, expected))) if distraction or loss else None
                share = round(queries * min(0.99, expected)) if hits is None else hits
                yield {
                    "release_order": release,
                    "task_order": task,
                    "mode": mode,
                    "gallery": gallery,
                    "queries": queries,
                    "r1": share / queries,
                    "r5": min(1.0, share / queries + 0.15),
                    "r10": min(1.0, share / queries + 0.2),
                    "medr": 2.0,
                    "meanr": 4.5,
                    "routing1": min(1.0, share / queries + 0.1) if gallery == "global" else None,
                }


pytestmark = pytest.mark.slow  # drives a browser

DOMAINS = 60
CELLS = "#matrix [data-testid]"


@pytest.fixture(scope="module")
def large(configured: Settings, client: TestClient) -> Iterator[str]:
    """URL of a library of 60 measured domains, whose index is missing."""
    fill_library(DOMAINS)
    shutil.rmtree(configured.index_dir)
    with serve(client.app) as url:
        yield f"{url}/admin"


@pytest.fixture(autouse=True)
def no_console_errors(browser: WebDriver) -> Iterator[None]:
    """Fail a test if a page logs an error; the missing index makes readiness, searches and query reports answer 503."""
    browser.get_log("browser")
    yield
    logged = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [entry for entry in logged if not re.search(r"/readyz|/search\?|/queries\?", entry["message"])]


@pytest.fixture
def page(browser: WebDriver, large: str) -> WebDriver:
    """The loaded library page."""
    browser.get(large)
    wait_for(browser, CELLS, 100)
    return browser


def _rows(browser: WebDriver) -> list[str]:
    return texts(browser, "#matrix tbody th")


def _press(browser: WebDriver, pager: str, name: str) -> None:
    css = f"#{pager}-pager [aria-label='{name}']"
    browser.execute_script("arguments[0].click()", browser.find_element(By.CSS_SELECTOR, css))


def test_matrix_is_paged_by_domains_and_releases(page: WebDriver, client: TestClient) -> None:
    complete = client.get("/forgetting", params={"rows": DOMAINS}).json()
    assert _rows(page) == ["nothing (zero-shot)", "its own release"] + [
        f"{number} {complete['after'][number - 1]}" for number in range(41, 61)
    ]
    assert texts(page, "#matrix thead th")[1:] == complete["tasks"][:20]
    learned = [f"{100 * share:.1f}" for share in complete["learned"]["local"][:20]]
    assert texts(page, "[data-testid^=learned]") == learned
    assert [page.find_element(By.ID, f"{axis}-window").text for axis in ("domain", "release")] == [
        f"Domains 1–20 of {complete['domains']}",
        "Releases 41–60 of 60",
    ]
    _press(page, "release", "Earlier releases")
    wait_until(page, lambda b: _rows(b)[2].startswith("21 "))
    _press(page, "domain", "Later domains")
    wait_until(page, lambda b: texts(b, "#matrix thead th")[1:] == complete["tasks"][20:40])
    shown = [f"{100 * share:.1f}" for share in complete["matrix_local"][39][20:40] if share is not None]
    assert texts(page, "[data-testid^=cell-40-]") == shown
    page.execute_script("document.querySelector('[data-gallery=global]').click()")
    shown = [f"{100 * share:.1f}" for share in complete["matrix_global"][39][20:40] if share is not None]
    wait_until(page, lambda b: texts(b, "[data-testid^=cell-40-]") == shown)
    assert not texts(page, "#time-legend li"), "no lines of 60 domains"


def test_matrix_is_downloaded_as_csv(page: WebDriver, client: TestClient) -> None:
    page.execute_script(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.csv = text }); return '#csv' }"
    )
    page.execute_script("document.getElementById('matrix-csv').click()")
    text = wait_until(page, lambda b: b.execute_script("return window.csv"))
    rows = list(csv.DictReader(text.splitlines()))
    complete = client.get("/forgetting", params={"rows": DOMAINS}).json()
    assert len(rows) == sum(share is not None for row in complete["matrix_local"] for share in row)
    assert rows[0] == {
        "release": "1",
        "after": complete["after"][0],
        "domain": complete["tasks"][0],
        "recall_at_1": str(complete["matrix_local"][0][0]),
        "queries": str(complete["queries"][0][0]),
    }


def test_domains_are_searched_and_paged(page: WebDriver, client: TestClient) -> None:
    names = [task["name"] for task in reversed(client.get("/tasks").json())]
    assert texts(page, "#tasks .name") == names[:10]
    pager = page.find_element(By.CSS_SELECTOR, "[aria-label='Pages of domains']")
    following = pager.find_element(By.XPATH, ".//button[.='Next']")
    page.execute_script("arguments[0].click()", following)
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[10:20])
    assert "Page 2" in pager.text
    page.execute_script("arguments[0].click()", pager.find_element(By.XPATH, ".//button[.='Previous']"))
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[:10])
    search = page.find_element(By.ID, "tasks-text")
    search.send_keys("POTTERY")
    wanted = [name for name in names if name.startswith("pottery")]
    wait_until(page, lambda b: texts(b, "#tasks .name") == wanted)
    assert not pager.is_displayed()
    search.send_keys(" %_")
    wait_until(page, lambda b: "No domain matches" in b.find_element(By.ID, "tasks-none").text)
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.BACKSPACE)
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[:10])
    page.execute_script("document.querySelector('[data-state=failed]').click()")
    wait_until(page, lambda b: b.find_element(By.ID, "tasks-none").text == "No domain is in this state.")


def test_shards_and_releases_are_paged(page: WebDriver) -> None:
    wait_for(page, "#shards tbody tr", 10)
    first = texts(page, "#releases tbody tr td:nth-child(2)")
    pager = page.find_element(By.CSS_SELECTOR, "[aria-label='Pages of releases']")
    page.execute_script("arguments[0].click()", pager.find_element(By.XPATH, ".//button[.='Next']"))
    wait_until(page, lambda b: set(texts(b, "#releases tbody tr td:nth-child(2)")).isdisjoint(first))
    assert len(texts(page, "#releases tbody tr")) == 10
