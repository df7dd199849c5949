"""The health routes of the API."""

from __future__ import annotations

import asyncio
import threading

import pytest
from fastapi.testclient import TestClient
from httpx import ASGITransport, AsyncClient

from api.routes import health_routes
from cinestrata_schemas.operations import Readiness
from service.core.settings import Settings
from service.storage import library_paths
from tests.api.conftest import BASE_URL


def test_readyz_names_a_data_folder_that_cannot_be_written(
    client: TestClient, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(library_paths.tempfile, "NamedTemporaryFile", refuse)
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["ready"] is False
    assert str(configured.data_dir) in response.json()["checks"]["data_folder"]
    assert "Permission denied" in response.json()["checks"]["data_folder"]
    monkeypatch.undo()
    assert client.get("/readyz").json()["checks"]["data_folder"] == "ok"


def test_concurrent_requests_share_a_readiness_check(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, finished, count = threading.Event(), threading.Event(), 0

    def check(*_: object) -> Readiness:
        nonlocal count
        count += 1
        started.set()
        assert finished.wait(30)
        return Readiness.model_construct(ready=True, checks={})

    async def statuses() -> list[int]:
        async with AsyncClient(transport=ASGITransport(client.app), base_url=BASE_URL) as api:
            waiting = [asyncio.create_task(api.get("/readyz")) for _ in range(5)]
            await asyncio.to_thread(started.wait, 30)
            waiting[0].cancel()
            await asyncio.sleep(0.05)
            finished.set()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            answers.append(await api.get("/readyz"))
            return [getattr(answer, "status_code", 0) for answer in answers]

    monkeypatch.setattr(health_routes, "_check_readiness", check)
    assert asyncio.run(statuses()) == [0, 200, 200, 200, 200, 200]
    assert count == 2
