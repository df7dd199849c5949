"""Searches of a service whose PostgreSQL server is killed, started again, and cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from benchmarks.chaos.postgres_server import PostgresServer
from benchmarks.chaos.tcp_proxy import TcpProxy
from models.backbones.backbone_loading import load_backbone
from service.core.settings import Settings
from tests.service.search.caption_library import BIRDS, CARS, Library

pytestmark = pytest.mark.slow

_PAUSE = threading.Event()


class _Searches:
    """Searches that a thread sends without a pause.

    Attributes:
        answers: Status, source of the metadata, and IDs of the results of each.
    """

    def __init__(self, client: TestClient) -> None:
        self.answers: list[tuple[int, bool, tuple[str, ...]]] = []
        self._client = client
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Searches:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()

    def wait_for(self, condition: Callable[[int, bool], bool]) -> None:
        """Wait until a search that starts from now on is answered as wanted."""
        first = len(self.answers) + 1
        while not any(condition(status, copied) for status, copied, _ in self.answers[first:]):
            _PAUSE.wait(0.05)

    def _run(self) -> None:
        number = 0
        while not self._is_stopped.wait(0.02):
            number += 1
            body = self._client.get("/v1/search", params={"q": f"a heron {number}", "k": 20})
            found = body.json()
            is_copied = found.get("metadata_as_of") is not None
            ids = tuple(sorted(result["video_id"] for result in found.get("results", ())))
            self.answers.append((body.status_code, is_copied, ids))


def test_searches_continue_without_the_database(
    tmp_path: Path, killable_postgres: PostgresServer, settings_factory: Callable[..., Settings]
) -> None:
    network = TcpProxy(killable_postgres.connect)
    configured = settings_factory(
        tmp_path, database_url=f"postgresql://postgres@127.0.0.1:{network.port}/postgres"
    )
    library = Library(configured, load_backbone("tiny"), "zero_shot")
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS)
    with TestClient(create_app(configured), base_url="http://127.0.0.1:8000") as client:
        while (
            not client.get("/readyz").json()["ready"] or not client.app.state.query_service.read_cache.as_of
        ):  # type: ignore[attr-defined]
            _PAUSE.wait(0.1)
        assert client.delete("/videos/birds-1").status_code == 200
        with _Searches(client) as searches:
            searches.wait_for(lambda status, copied: status == 200 and not copied)
            assert killable_postgres.kill()
            searches.wait_for(lambda _, copied: copied)
            assert client.post("/tasks/none/cancel").status_code == 503
            readiness = client.get("/readyz")
            assert readiness.status_code == 200
            assert "copy" in readiness.json()["checks"]["database"]
            while not killable_postgres.is_running():
                killable_postgres.start()
            searches.wait_for(lambda status, copied: status == 200 and not copied)
            network.freeze()
            searches.wait_for(lambda _, copied: copied)
            network.restore()
            searches.wait_for(lambda status, copied: status == 200 and not copied)
            network.cut()
            searches.wait_for(lambda _, copied: copied)
            network.restore()
            searches.wait_for(lambda status, copied: status == 200 and not copied)
        expected = tuple(
            sorted({f"{name}-{n}" for name in ("birds", "cars") for n in range(3)} - {"birds-1"})
        )
        assert {(status, ids) for status, _, ids in searches.answers} == {(200, expected)}
    network.close()
