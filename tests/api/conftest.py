"""The application over a catalog of its own, and a learned library."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import SecretStr

from api.app import create_app
from api.security.authentication import Authenticator
from service.catalog.database import dispose
from service.catalog.migrations import upgrade
from service.core import change_sequence
from service.core.settings import Settings, settings
from service.tasks.lifecycle import claims
from tests.api.learned_library import FIRST, SECOND, learn_two_domains
from tests.drawn_videos import write_domains
from tests.shared_folders import shared_folder

BASE_URL = "http://127.0.0.1:8000"
SECRET = "s3cret-of-the-environment"


@pytest.fixture(scope="session")
def rendered_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small domains of mp4 files. Tests use copies."""

    def write(folder: Path) -> None:
        write_domains(folder, domains=[FIRST, SECOND], train=6, val=0, test=6)

    return shared_folder(tmp_path_factory, "world", write)


@pytest.fixture(scope="session")
def learned_folder(rendered_world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A data folder with the two domains learned, and the IDs of their tasks. Tests use copies."""

    def write(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CINESTRATA_DATA_DIR", str(folder / "data"))
            patch.setattr(claims, "EVENT_SECONDS", 0)
            settings.cache_clear()
            dispose()
            shutil.copytree(rendered_world, settings().media_root)
            upgrade(settings())
            tasks = learn_two_domains(settings().media_root)
            dispose()
        settings.cache_clear()
        (folder / "tasks.json").write_text(json.dumps(tasks))

    folder = shared_folder(tmp_path_factory, "learned", write)
    return folder / "data", json.loads((folder / "tasks.json").read_text())


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory, sqlite_catalog_file: Path) -> Iterator[Settings]:
    """Settings of an empty library, shared by the tests of a file. No broker answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CINESTRATA_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        patch.setattr(claims, "EVENT_SECONDS", 0)
        settings.cache_clear()
        dispose()
        settings().media_root.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sqlite_catalog_file, settings().data_dir / "catalog.sqlite3")
        yield settings()
        dispose()
    settings.cache_clear()


@pytest.fixture(scope="module")
def world(configured: Settings, rendered_world: Path) -> Path:
    """The two domains in the media root."""
    shutil.copytree(rendered_world, configured.media_root, dirs_exist_ok=True)
    return configured.media_root


@pytest.fixture(scope="module")
def client(configured: Settings) -> Iterator[TestClient]:
    """A client of the running application; server errors are responses, not exceptions. It sees edits at once."""
    with TestClient(create_app(configured), base_url=BASE_URL, raise_server_exceptions=False) as client:
        client.headers[change_sequence.HEADER] = str(change_sequence.LATEST)
        yield client
        # The thread that loads the first snapshot must not outlive the tests of the file.
        client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]


def create_guarded_app(configured: Settings) -> FastAPI:
    """Create an application with a key in the environment, bound to a network address."""
    return create_app(configured.model_copy(update={"api_key": SecretStr(SECRET), "host": "0.0.0.0"}))


@pytest.fixture(scope="module")
def guarded_app(configured: Settings) -> FastAPI:
    """Such an application, shared by the tests of a file."""
    return create_guarded_app(configured)


@pytest.fixture
def guarded(guarded_app: FastAPI) -> TestClient:
    """A client of that application, which knows of no attempt or session of another test."""
    state = guarded_app.state
    vars(state.authenticator).update(vars(Authenticator(state.settings, state.query_service.catalog_reads)))
    return TestClient(
        guarded_app,
        base_url="http://search.example.org",
        raise_server_exceptions=False,
        follow_redirects=False,
    )


@pytest.fixture(scope="module")
def library(
    configured: Settings, world: Path, client: TestClient, learned_folder: tuple[Path, list[str]]
) -> list[str]:
    """Task IDs of two learned domains that ``client`` serves."""
    folder, tasks = learned_folder
    dispose()
    settings.cache_clear()
    target = configured.data_dir
    for entry in folder.iterdir():
        # The running query service must not read half a copy.
        if entry.name in ("index", "media", "catalog.sqlite3"):
            continue
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name, dirs_exist_ok=True)
    # A thread of the query service may have the catalog open, so its file stays and its pages are replaced.
    with (
        closing(sqlite3.connect(folder / "catalog.sqlite3")) as learned,
        closing(sqlite3.connect(target / "catalog.sqlite3", timeout=30)) as catalog,
    ):
        learned.backup(catalog)
    shutil.copytree(folder / "index", target / "index.copy")
    shutil.rmtree(target / "index", ignore_errors=True)
    os.replace(target / "index.copy", target / "index")
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    return tasks
