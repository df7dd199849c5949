"""A served application for the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.api.browser import serve
from tests.api.conftest import client, configured

__all__ = ["client", "configured"]


@pytest.fixture(scope="module")
def address(client: TestClient) -> Iterator[str]:
    """URL of the application with an empty library, without workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.tasks.broker.send_probe", lambda task_id: None)
        with serve(client.app) as url:
            yield url
