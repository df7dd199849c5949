"""The glance, the metrics, the logs, the settings and the words of errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import ValidationError

from service.catalog.database import now, session_scope
from service.catalog.tables import Release, Shard
from service.core import errors
from service.core.logging import configure_logging
from service.core.schemas import TaskDetails
from service.core.settings import RENAMED_VARIABLES, Settings
from service.library import prometheus_metrics
from service.library.overview import overview
from service.tasks import commands, lifecycle

Post = Callable[..., TaskDetails]


def _lay_down(task_id: str) -> None:
    with session_scope(write=True) as session:
        at = now(session)
        session.add(
            Release(
                id="r1",
                task_id=task_id,
                learned_order=1,
                method="ffa_tame",
                backbone="tiny",
                kind="tame",
                fingerprint="f",
                bytes=1000,
                created_at=at,
                metrics={},
            )
        )
        session.flush()
        session.add(
            Shard(
                id="s1",
                task_id=task_id,
                release_id="r1",
                fingerprint="f",
                count=3,
                dim=8,
                bytes=200,
                created_at=at,
            )
        )


def test_the_glance(catalog: Settings, post_probed: Post) -> None:
    view = post_probed("birds", videos=3)
    assert lifecycle.claim_training(view.id, "host:1:2") is not None
    _lay_down(view.id)
    shown = overview({view.id: "vectors.faiss does not match its checksum"})
    assert shown.tasks["probing"] == 1
    assert shown.tasks["ready"] == 0
    assert (shown.videos, shown.vectors, shown.bytes_shards, shown.bytes_releases) == (3, 3, 200, 1000)
    assert [(w.owner, w.task) for w in shown.workers] == [("host:1:2", "birds")]
    assert (shown.shards[0].task, shown.releases[0].learned_order) == ("birds", 1)
    assert shown.degraded == {"birds": "vectors.faiss does not match its checksum"}
    assert shown.database == "ok"
    assert "does not answer" in shown.broker


def test_a_shard_that_the_index_does_not_know_is_told(sqlite_catalog: Settings, post_probed: Post) -> None:
    _lay_down(post_probed("birds").id)
    assert "does not name" in overview().degraded["birds"]


def test_a_broken_manifest_is_told_not_thrown(sqlite_catalog: Settings, post: Post) -> None:
    view = post()
    sqlite_catalog.index_dir.mkdir()
    (sqlite_catalog.index_dir / "manifest.json").write_text("{")
    assert "manifest.json" in overview().degraded["index"]
    with pytest.raises(errors.Unavailable, match=r"manifest\.json"):
        commands.cancel_task(view.id)


def test_the_broker_is_seen(
    tmp_path: Path, settings_factory: Callable[..., Settings], broker_url: str
) -> None:
    settings_factory(tmp_path, redis_url=broker_url)
    assert overview().broker == "ok"


def test_metrics(catalog: Settings, post: Post) -> None:
    post("one")
    post("two")
    prometheus_metrics.SEARCH_SECONDS.labels("encode").observe(0.002)
    page, kind = prometheus_metrics.render()
    text = page.decode()
    assert kind.startswith("text/plain")
    assert 'cinestrata_tasks{state="queued"} 2.0' in text
    assert 'cinestrata_tasks{state="ready"} 0.0' in text
    assert "cinestrata_shards 0.0" in text
    assert "cinestrata_catalog_up 1.0" in text
    assert 'cinestrata_search_seconds_bucket{le="0.0025",stage="encode"}' in text


def test_metrics_without_a_database(tmp_path: Path, settings_factory: Callable[..., Settings]) -> None:
    settings_factory(tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none", upgraded=False)
    text = prometheus_metrics.render()[0].decode()
    assert "cinestrata_catalog_up 0.0" in text
    assert "cinestrata_tasks" not in text


@pytest.fixture
def own_logging() -> Any:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("own_logging")
def test_json_logs_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("json", "INFO")
    structlog.get_logger("product").info("laid down", task="tsk_1")
    logging.getLogger("library").warning("from %s", "elsewhere")
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("product").exception("failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (lines[0]["event"], lines[0]["task"], lines[0]["level"]) == ("laid down", "tsk_1", "info")
    assert (lines[1]["event"], lines[1]["logger"]) == ("from elsewhere", "library")
    assert lines[2]["exception"][0]["exc_value"] == "broken"


@pytest.mark.usefixtures("own_logging")
def test_console_logs_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("console", "WARNING")
    structlog.get_logger("product").info("not shown")
    structlog.get_logger("product").warning("shown", task="tsk_1")
    printed = capsys.readouterr().err
    assert "not shown" not in printed
    assert "shown" in printed
    assert "tsk_1" in printed


class TestSettings:
    """What the environment says."""

    def test_everything_lies_in_the_data_folder(self, tmp_path: Path) -> None:
        made = Settings(data_dir=tmp_path)
        assert made.database_url == f"sqlite:///{tmp_path}/catalog.sqlite3"
        assert made.redis_client_url == f"unix://{tmp_path}/run/redis.sock"
        assert made.media_root == tmp_path / "media"

    def test_paths_are_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert Settings(data_dir=Path("here")).data_dir == tmp_path / "here"

    def test_postgresql_gets_its_driver(self) -> None:
        for url in ("postgresql://u@h/d", "postgres://u@h/d"):
            assert Settings(database_url=url).database_url == "postgresql+psycopg://u@h/d"

    def test_an_empty_key_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CINESTRATA_API_KEY", "")
        assert Settings().api_key is None
        monkeypatch.setenv("CINESTRATA_API_KEY", "secret")
        assert "secret" not in repr(Settings())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("METHOD", "magic"),
            ("PORT", "70000"),
            ("BAD_VIDEO_SHARE", "2"),
            ("LEASE_SECONDS", "0"),
            ("LIMITS__MAX_RESULTS", "0"),
            ("QUERY_MODE", "x"),
        ],
    )
    def test_wrong_values_are_named(self, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
        monkeypatch.setenv(f"CINESTRATA_{name}", value)
        with pytest.raises(ValidationError, match=name.lower().replace("__", ".")):
            Settings()

    @pytest.mark.parametrize(("old", "new"), RENAMED_VARIABLES.items())
    def test_a_variable_of_an_old_name_is_refused_with_the_new_name(
        self, monkeypatch: pytest.MonkeyPatch, old: str, new: str | None
    ) -> None:
        monkeypatch.setenv(old, "1")
        with pytest.raises(
            ValidationError, match=f"{old} is named {new} now" if new else f"{old} is not a setting"
        ):
            Settings()

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"vector_store": "milvus"}, "CINESTRATA_MILVUS__URI is empty"),
            ({"milvus": {"token": "root:s3cret"}}, "CINESTRATA_MILVUS__URI is empty"),
            ({"milvus": {"uri": "milvus:19530"}}, "'milvus:19530' is not an address"),
            ({"milvus": {"uri": "ftp://u:s3cret@host"}}, "'ftp://host' is not an address"),
            ({"milvus": {"uri": "http://milvus:19530", "collection": "a-b"}}, "milvus.collection"),
            ({"milvus": {"uri": "http://milvus:19530", "index": "TREE"}}, "milvus.index"),
            ({"vector_store": "pinecone"}, "vector_store"),
        ],
    )
    def test_milvus_is_checked_as_a_whole(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(ValidationError, match=said) as refused:
            Settings(**given)
        assert "s3cret" not in str(refused.value)

    @pytest.mark.parametrize(
        ("missing", "uri", "said"),
        [
            ("pymilvus", "http://milvus:19530", r"pip install 'cinestrata\[milvus\]'"),
            ("milvus_lite", "x.db", "pip install milvus-lite"),
        ],
    )
    def test_a_missing_client_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, missing: str, uri: str, said: str
    ) -> None:
        monkeypatch.setattr("service.core.settings.find_spec", lambda name: None if name == missing else name)
        with pytest.raises(ValidationError, match=said):
            Settings(milvus={"uri": uri})

    def test_the_token_of_milvus_is_not_shown(self) -> None:
        made = Settings(
            vector_store="milvus", milvus={"uri": "http://u:s3cret@milvus:1", "token": "root:s3cret"}
        )
        assert "s3cret" not in repr(made)
        assert Settings(milvus={"token": ""}).milvus.token is None


def test_every_error_has_a_status_and_a_title() -> None:
    def below(kind: type[errors.CinestrataError]) -> set[type[errors.CinestrataError]]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    kinds = {kind for kind in below(errors.CinestrataError) if kind.__module__ == "service.core.errors"}
    assert {kind.__name__ for kind in kinds} <= set(errors.__all__)
    for kind in kinds - {errors.CinestrataError, errors.TaskInterruption}:
        assert 400 <= kind.status < 600
        assert kind.title
        assert kind.__name__ in (errors.__doc__ or "")


def test_field_paths_read_like_code() -> None:
    assert errors.field_path(("videos", 3, "captions", 0)) == "videos[3].captions[0]"
    assert errors.field_path(()) == "body"
    wrong = errors.InvalidInput.of(
        [errors.FieldError("a", "Wrong.", "Mend."), errors.FieldError("b", "Wrong.")]
    )
    assert str(wrong) == "a: Wrong. Mend. (1 more)"
