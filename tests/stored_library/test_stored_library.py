"""A library that an earlier schema wrote is restored on both databases, migrated forward, and answers as before."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, delete, func, insert, select
from typer.testing import CliRunner

from cli.commands import doctor
from cli.main import app
from service.catalog.database import dispose, engine, session_scope
from service.catalog.migrations import alembic_config, upgrade
from service.catalog.tables import PositionCounter, Release, Task, Video
from service.core.settings import settings
from tests.stored_library.write_stored_library import read_answers

LIBRARIES = sorted(path.name.removesuffix(".tar.gz") for path in Path(__file__).parent.glob("*.tar.gz"))


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Environment of an empty data folder, which commands may change."""
    before = dict(os.environ)
    monkeypatch.setenv("CINESTRATA_DATA_DIR", str(tmp_path / "restored"))
    yield
    dispose()
    os.environ.clear()
    os.environ.update(before)
    settings.cache_clear()


@pytest.fixture
def backup(environment: None, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The stored snapshot of the test's parameter."""
    packed = Path(__file__).with_name(f"{request.param}.tar.gz")
    unpacked = tmp_path / f"{request.param}.tar"
    with gzip.open(packed) as source, unpacked.open("wb") as plain:
        shutil.copyfileobj(source, plain)
    return unpacked


def test_newest_stored_library_has_the_present_schema() -> None:
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert LIBRARIES[-1] == head, f"python -m tests.stored_library.write_stored_library {head}"


@pytest.mark.slow
@pytest.mark.parametrize("backup", LIBRARIES, indirect=True)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_stored_library_is_restored_and_answers_as_it_did(
    backup: Path, database: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        monkeypatch.setenv("CINESTRATA_DATABASE_URL", request.getfixturevalue("fresh_postgres_url"))
    _restore(backup)
    upgrade(settings())
    _require_stored_answers(backup.stem)


@pytest.mark.slow
@pytest.mark.parametrize("backup", LIBRARIES, indirect=True)
def test_old_catalog_on_postgresql_is_migrated_with_its_rows(
    backup: Path, monkeypatch: pytest.MonkeyPatch, fresh_postgres_url: str
) -> None:
    _restore(backup)
    old = create_engine(settings().database_url)
    dispose()
    monkeypatch.setenv("CINESTRATA_DATABASE_URL", fresh_postgres_url)
    settings.cache_clear()
    config = alembic_config()
    with old.connect() as source, engine().begin() as target:
        config.attributes["connection"] = target
        command.upgrade(config, backup.stem)
        tables = MetaData()
        tables.reflect(source)
        target.execute(delete(PositionCounter))
        # The restored catalog has the newest schema, the target that of the library.
        old_tables = MetaData()
        old_tables.reflect(target)
        for table in tables.sorted_tables:
            if table.name == "alembic_version" or table.name not in old_tables.tables:
                continue
            old_columns = old_tables.tables[table.name].c
            columns = [table.c[column.name] for column in old_columns if column.name in table.c]
            rows = [dict(row._mapping) for row in source.execute(select(*columns))]
            if rows:
                target.execute(insert(table), rows)
    old.dispose()
    upgrade(settings())
    _require_stored_answers(backup.stem)


def _restore(backup: Path) -> None:
    restored = CliRunner().invoke(app, ["restore", str(backup)])
    assert restored.exit_code == 0, restored.output
    dispose()
    settings.cache_clear()


def _require_stored_answers(library: str) -> None:
    assert "consistent with the catalog" in doctor.check_index(settings())
    with session_scope() as session:
        counts = [session.scalar(select(func.count()).select_from(table)) for table in (Task, Release, Video)]
        assert counts == [3, 2, 5]
        assert set(session.scalars(select(Task.state))) == {"ready"}
    stored = Path(__file__).with_name(f"{library}.json").read_text(encoding="utf-8")
    expected: dict[str, list[dict[str, Any]]] = json.loads(stored)
    answers = read_answers()
    assert list(answers) == list(expected)
    for query, results in expected.items():
        found = answers[query]
        assert [result["video_id"] for result in found] == [result["video_id"] for result in results]
        for answer, result in zip(found, results, strict=True):
            assert answer["score"] == pytest.approx(result["score"], abs=1e-4)
            assert (answer["task"], answer["captions"]) == (result["task"], result["captions"])
