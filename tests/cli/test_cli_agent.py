"""``cinestrata mcp``, started by the client of the protocol's SDK as an agent starts it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from mcp import Client as AgentClient
from mcp import StdioServerParameters
from mcp.types import CallToolResult, TextContent

from cinestrata_schemas.access import KeySpec
from cli.embedded.data_folder import hold_data_folder
from service.access.credentials import create_key
from tests.api.browser import serve
from tests.api.conftest import client, configured, learned_folder, library, rendered_world, world
from tests.api.learned_library import FIRST, SECOND

__all__ = ["client", "configured", "learned_folder", "library", "rendered_world", "world"]


GUIDE = Path(__file__).parents[2] / "docs" / "agents.md"
CONFIGURATIONS = re.findall(r"```json\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


# Values of company shells: without a scheme, with a password, with addresses that httpx cannot read.
PROXIES = {
    "HTTP_PROXY": "127.0.0.1:9",
    "http_proxy": "http://user:p%40ss@127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "all_proxy": "socks5h://127.0.0.1:9",
    "NO_PROXY": ".corp",
    "no_proxy": "localhost,127.0.0.0/8,::1,[::1],.corp",
    "SSL_CERT_FILE": "/nonexistent.pem",
}


@asynccontextmanager
async def _agent(*options: str, **variables: str) -> AsyncIterator[Callable[..., Awaitable[CallToolResult]]]:
    """Calls of tools of a started command: the name of a tool and its arguments."""
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "cli.main", *options], env={**os.environ, **variables}
    )
    async with AgentClient(command) as session:
        yield lambda tool, **arguments: session.call_tool(tool, arguments)


def _text(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


def _data(result: CallToolResult) -> Any:
    assert not result.is_error, result.content
    return json.loads(_text(result))["untrusted_data"]


@pytest.mark.slow
def test_documented_command_offers_a_data_folder_without_a_service(
    learned_folder: tuple[Path, list[str]], tmp_path: Path
) -> None:
    async def use(folder: Path) -> None:
        async with _agent(
            *(str(folder) if option == "/srv/my-data" else option for option in options)
        ) as call:
            listed = _data(await call("list_domains"))["domains"]
            assert [domain["name"] for domain in listed] == [FIRST, SECOND]
            answer = await call("search", query="a clip", k=1)
            assert [content.type for content in answer.content] == ["text", "image"]
            video = _data(answer)["results"][0]["video_id"]
            caption = _data(await call("look_at_video", video_id=video))["captions"][0]
            corrected = "a purple xylophone"
            await call("correct_caption", video_id=video, caption=caption, corrected=corrected)
            assert _data(await call("search", query="xylophone", k=1))["results"][0]["video_id"] == video

    documented = json.loads(CONFIGURATIONS[0])["mcpServers"]["cinestrata"]
    assert documented["command"] == "cinestrata"
    options = documented["args"]
    folder = tmp_path / "data"
    shutil.copytree(learned_folder[0], folder)
    asyncio.run(use(folder))


@pytest.mark.slow
def test_agent_uses_a_service_with_the_scope_of_its_key(
    client: TestClient, library: list[str], tmp_path: Path
) -> None:
    """The proxies of the environment, none of which answers, do not stand between them."""
    key = create_key(KeySpec(name="stdio", scope="search")).key

    async def use() -> None:
        with hold_data_folder(tmp_path / "run", tmp_path) as lock:
            lock.write_record(url=url)
            async with _agent("mcp", "--data", str(tmp_path), CINESTRATA_API_KEY=key, **PROXIES) as call:
                listed = _data(await call("list_domains"))["domains"]
                assert [domain["id"] for domain in listed] == library
        async with _agent("mcp", "--url", url, CINESTRATA_API_KEY=key, **PROXIES) as call:
            listed = _data(await call("list_domains"))["domains"]
            assert [domain["id"] for domain in listed] == library
            assert "403" in _text(await call("add_domain", name="refused", videos=[{"uri": "a.mp4"}]))
        async with _agent("mcp", "--url", url, CINESTRATA_API_KEY="") as call:
            assert "401" in _text(await call("list_domains"))

    with serve(client.app) as url:
        asyncio.run(use())
