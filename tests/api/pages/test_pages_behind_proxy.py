"""The pages and clients behind a proxy that removes a path prefix: nothing is asked for outside the prefix."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.remote.webdriver import WebDriver
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route

from api.agents.library_tools import OpenClient
from cli.service_client import open_agent_api
from tests.api.browser import find, serve, wait_for, wait_until
from tests.api.learned_library import FIRST
from tests.cli.invocation import run

pytestmark = pytest.mark.slow
ROOT = "/clips"
METHODS = ["GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS"]


@pytest.fixture(scope="module", autouse=True)
def root_path() -> Iterator[None]:
    """The setting that names the prefix, for the settings of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CINESTRATA_ROOT_PATH", ROOT)
        yield


@pytest.fixture(scope="module")
def address(client: TestClient, library: list[str]) -> Iterator[str]:
    """URL of the service behind a proxy, which answers 404 outside the prefix."""
    with serve(client.app) as service, serve(_proxy(service)) as proxy:
        yield f"{proxy}{ROOT}"


def _proxy(service: str) -> Starlette:
    client = httpx.AsyncClient(timeout=120, trust_env=False)

    async def forward(request: Request) -> StreamingResponse:
        inner = httpx.URL(f"{service}/{request.path_params['path']}", query=request.url.query.encode())
        body = await request.body()
        asked = client.build_request(request.method, inner, headers=request.headers.raw, content=body)
        answer = await client.send(asked, stream=True)
        forwarded = StreamingResponse(
            answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
        )
        forwarded.raw_headers = answer.headers.raw
        return forwarded

    return Starlette(routes=[Mount(ROOT, routes=[Route("/{path:path}", forward, methods=METHODS)])])


def _open(browser: WebDriver, url: str, css: str) -> None:
    """Open a page, wait for an element of its script, and require that it asked for nothing outside the prefix."""
    browser.get(url)
    wait_for(browser, css)
    asked = browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    root = url[: url.index(ROOT) + len(ROOT)]
    assert asked
    assert [name for name in asked if not name.startswith((f"{root}/", "data:"))] == []
    links = browser.execute_script(
        "return [...document.querySelectorAll('a[href], form')].map((e) => e.href ?? e.action)"
    )
    assert [link for link in links if not link.startswith(f"{root}/")] == []


def test_all_pages_load_behind_a_proxy(browser: WebDriver, address: str, library: list[str]) -> None:
    _open(browser, f"{address}/", "#health:not([data-health=unknown])")
    _open(browser, f"{address}/?q=a+taxi", ".play img")
    picture = find(browser, ".play img")
    wait_until(browser, lambda b: b.execute_script("return arguments[0].naturalWidth", picture))
    watch = find(browser, 'a[href*="/watch/"]').get_attribute("href")
    assert watch
    _open(browser, watch, "#screen video")
    wait_until(browser, lambda b: b.execute_script("return document.querySelector('video').videoWidth"))
    _open(browser, f"{address}/admin", ".domain-link")
    _open(browser, f"{address}/domains/{library[0]}", "[data-testid=video]")
    for page in ("login", "docs", "access"):
        _open(browser, f"{address}/{page}", "h1")


def test_browser_uploads_behind_a_proxy(browser: WebDriver, address: str) -> None:
    _open(browser, f"{address}/", "#health:not([data-health=unknown])")
    upload = browser.execute_async_script(
        """
        const done = arguments[1];
        const options = { signal: new AbortController().signal, onBytes() {}, onWait() {} };
        import(`${arguments[0]}/static/uploads/tus_client.js`)
          .then((tus) => tus.sendFile("a.mp4", new File([new Uint8Array(3e6)], "a.mp4"), options))
          .then(done, (error) => done(String(error)));
        """,
        ROOT,
    )
    assert upload.startswith("upl_")
    headers = {"Tus-Resumable": "1.0.0"}
    assert httpx.head(f"{address}/uploads/{upload}", headers=headers).headers["upload-offset"] == "3000000"


@pytest.mark.parametrize("slash", ["", "/"])
def test_commands_and_agents_use_the_prefix(address: str, slash: str) -> None:
    outcome = run("search", "a taxi", "--json", "--url", f"{address}{slash}")
    assert json.loads(outcome.stdout)["results"][0]["stream_url"].startswith(f"{ROOT}/videos/")
    asyncio.run(_require_tasks(open_agent_api(f"{address}{slash}", None)))
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "list_domains", "arguments": {}},
    }
    accepted = {"Accept": "application/json, text/event-stream"}
    assert FIRST in httpx.post(f"{address}/mcp", json=message, headers=accepted).text


async def _require_tasks(open_client: OpenClient) -> None:
    async with open_client(None) as api:
        assert (await api.get("/v1/tasks")).json()[0]["name"] == FIRST
