"""The health routes of the API."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from service.core.settings import Settings
from service.storage import data_folder


def test_readyz_names_a_data_folder_that_cannot_be_written(
    client: TestClient, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(data_folder.tempfile, "NamedTemporaryFile", refuse)
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["ready"] is False
    assert str(configured.data_dir) in response.json()["checks"]["data_folder"]
    assert "Permission denied" in response.json()["checks"]["data_folder"]
    monkeypatch.undo()
    assert client.get("/readyz").json()["checks"]["data_folder"] == "ok"
