"""The health routes of the API."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from service.core.settings import Settings
from service.storage import library_files
from tests.api.browser import serve
from tests.api.conftest import BASE_URL


def test_readyz_names_a_data_folder_that_cannot_be_written(
    client: TestClient, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(library_files.tempfile, "NamedTemporaryFile", refuse)
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["ready"] is False
    assert str(configured.data_dir) in response.json()["checks"]["data_folder"]
    assert "Permission denied" in response.json()["checks"]["data_folder"]
    monkeypatch.undo()
    assert client.get("/readyz").json()["checks"]["data_folder"] == "ok"


@pytest.fixture(scope="module")
def status_without_host(client: TestClient) -> Iterator[Callable[[str, str], tuple[int, bool]]]:
    """Returns a function that sends a request of HTTP/1.0 without a Host header: status, and whether a body follows."""
    with serve(client.app) as url:
        address = urlsplit(url)

        def send(method: str, path: str) -> tuple[int, bool]:
            with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
                connection.sendall(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
            head, _, body = answer.partition(b"\r\n\r\n")
            return int(head.split(b" ")[1]), bool(body)

        yield send


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/livez?t=1", "/v1/livez", "/v1/readyz"])
def test_health_checks_need_no_host(
    status_without_host: Callable[[str, str], tuple[int, bool]], path: str
) -> None:
    expected = (503,) if "readyz" in path else ()  # without a broker
    for method, has_body in (("GET", True), ("HEAD", False)):
        status, body = status_without_host(method, path)
        assert (status in (200, *expected), body) == (True, has_body)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/search?q=dog",
        "/videos",
        "/livezz",
        "/livez/",
        "/livez/../videos",
        "//livez",
        "/static/livez",
        "/metrics",
    ],
)
def test_other_paths_need_a_local_host(
    client: TestClient, status_without_host: Callable[[str, str], tuple[int, bool]], path: str
) -> None:
    assert status_without_host("GET", path)[0] == 403
    assert client.get(f"{BASE_URL}{path}", headers={"Host": "evil.example"}).status_code == 403


def test_other_methods_need_a_local_host(status_without_host: Callable[[str, str], tuple[int, bool]]) -> None:
    assert status_without_host("OPTIONS", "/")[0] == status_without_host("POST", "/mcp")[0] == 403


@pytest.mark.parametrize("path", ["/livez", "/readyz"])  # the latter names domains, so pages must not read it
def test_health_checks_refuse_foreign_hosts_on_loopback(client: TestClient, path: str) -> None:
    assert client.get(path, headers={"Host": "evil.example"}).status_code == 403
    assert client.get(path, headers={"Host": "[::1]:8000"}).status_code in (200, 503)  # 503 without a broker
