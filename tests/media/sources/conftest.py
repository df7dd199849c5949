"""Downloads from the web server of a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from media.sources.downloading import DownloadLimits, SourceCache, download_file
from media.sources.media_source import SourcePrefix, SourceUri, find_prefix
from media.sources.web_server import WebServer
from tests.web_files import WebFiles

Download = Callable[..., AbstractContextManager[Path]]


@pytest.fixture
def cache(tmp_path: Path) -> SourceCache:
    return SourceCache(tmp_path / "cache", max_bytes=10_000_000, wait_seconds=0.0)


@pytest.fixture
def pauses() -> list[float]:
    """Pauses of ``download`` in seconds, which take no time."""
    return []


@pytest.fixture
def download(web_files: WebFiles, cache: SourceCache, pauses: list[float]) -> Download:
    """``download(uri, *prefixes, **limits)``: a download of the test's server, which is allowed."""

    def start(uri: str, *prefixes: str, **limits: float) -> AbstractContextManager[Path]:
        allowed = [SourcePrefix.parse(prefix) for prefix in (f"private+{web_files.url}/", *prefixes)]
        return download_file(
            WebServer(partial(find_prefix, allowed=allowed)),
            SourceUri.parse(uri),
            cache,
            DownloadLimits(**{"max_bytes": 1_000_000, **limits}),  # type: ignore[arg-type]
            sleep=pauses.append,
        )

    return start
