"""Validation of settings, and their list in docs/configuration.md with their defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import pytest
import torch
from pydantic import BaseModel, ValidationError

from index.errors import DeviceMissing
from models.errors import ModelError
from service.core.settings import OTHER_VARIABLES, Settings
from service.search.engine import SearchEngine


def test_default_paths_are_absolute_and_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Settings(data_dir=tmp_path)
    assert made.database_url == f"sqlite:///{tmp_path}/catalog.sqlite3"
    assert made.redis_client_url == f"unix://{tmp_path}/run/redis.sock"
    assert made.media_root == tmp_path / "media"
    monkeypatch.chdir(tmp_path)
    assert Settings(data_dir=Path("here")).data_dir == tmp_path / "here"


def test_postgresql_url_is_extended_by_its_driver() -> None:
    for url in ("postgresql://u@h/d", "postgres://u@h/d"):
        assert Settings(database_url=url).database_url == "postgresql+psycopg://u@h/d"


def test_empty_api_key_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINESTRATA_API_KEY", "")
    assert Settings().api_key is None
    monkeypatch.setenv("CINESTRATA_API_KEY", "hunter2-hunter2-hunter2")
    assert "hunter2" not in repr(Settings())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("METHOD", "magic"),
        ("PORT", "70000"),
        ("LEASE_SECONDS", "0"),
        ("MAX_UPLOAD_BYTES", "0"),
        ("INDEX_DEVICE", "tpu"),
        ("QUERY_DEVICE", "tpu"),
    ],
)
def test_invalid_values_raise_with_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"CINESTRATA_{name}", value)
    with pytest.raises(ValidationError, match=name.lower().replace("__", ".")):
        Settings()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CINESTRATA_METHODS", "METHODS is not a setting: use CINESTRATA_METHOD, or remove it"),
        ("CINESTRATA_OIDC__ISSUERS", "use CINESTRATA_OIDC__ISSUER,"),
        ("CINESTRATA_LEASE_SECOND", "use CINESTRATA_LEASE_SECONDS,"),
        ("cinestrata_api_keys", "use CINESTRATA_API_KEY,"),
        ("CINESTRATA_API_PORT", "use CINESTRATA_PORT,"),
        ("CINESTRATA_QQQ", r"CINESTRATA_QQQ is not a setting: remove it \(docs/configuration.md"),
    ],
)
def test_misspelt_variable_is_refused_with_the_closest_name(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ValidationError, match=message):
        Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cinestrata_port", "8001"),
        ("CINESTRATA_MILVUS", '{"collection": "library"}'),
        ("CINESTRATA_URL", "http://127.0.0.1:8000"),
        ("CINESTRATA_BIND", "127.0.0.1"),
        ("CINESTRATA_API_SERVICE_HOST", "10.0.0.1"),
        ("CINESTRATA_API_SERVICE_PORT_HTTP", "80"),
        ("CINESTRATA_API_PORT", "tcp://10.0.0.1:80"),
        ("CINESTRATA_API_PORT_80_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_variables_of_other_programs_and_valid_spellings_are_accepted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    Settings()


@pytest.mark.parametrize(
    ("given", "message"),
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
def test_milvus_settings_are_validated_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as refused:
        Settings(**given)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("missing", "uri", "message"),
    [
        ("pymilvus", "http://milvus:19530", r"pip install 'cinestrata\[milvus\]'"),
        ("milvus_lite", "x.db", "pip install milvus-lite"),
    ],
)
def test_missing_milvus_client_raises_with_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str, uri: str, message: str
) -> None:
    monkeypatch.setattr("service.core.settings.find_spec", lambda name: None if name == missing else name)
    with pytest.raises(ValidationError, match=message):
        Settings(milvus={"uri": uri})


@pytest.mark.parametrize(
    ("endpoint", "missing", "message"),
    [
        ("collector:4318", None, "'collector:4318' is not the URL of a collector"),
        ("grpc://collector:4317", None, "http://collector:4318"),
        ("http://collector:4318", "opentelemetry.exporter", r"pip install 'cinestrata\[otel\]'"),
        ("https://collector", "opentelemetry.exporter.otlp.proto.http", r"pip install 'cinestrata\[otel\]'"),
    ],
)
def test_collector_of_traces_needs_a_url_and_its_packages(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, missing: str | None, message: str
) -> None:
    def find(name: str) -> str | None:
        if missing and name.startswith(f"{missing}."):
            raise ModuleNotFoundError(missing)
        return None if name == missing else name

    monkeypatch.setattr("service.core.settings.find_spec", find)
    with pytest.raises(ValidationError, match=message):
        Settings(otlp_endpoint=endpoint)
    monkeypatch.setattr("service.core.settings.find_spec", lambda name: name)
    assert Settings(otlp_endpoint="https://collector:4318/v1").otlp_endpoint == "https://collector:4318/v1"
    assert Settings(otlp_endpoint=None).otlp_endpoint is None


def test_milvus_token_is_not_shown() -> None:
    made = Settings(vector_store="milvus", milvus={"uri": "http://u:s3cret@milvus:1", "token": "root:s3cret"})
    assert "s3cret" not in repr(made)
    assert Settings(milvus={"token": ""}).milvus.token is None


@pytest.mark.parametrize(
    ("setting", "message", "error"),
    [
        ("index_device", "CINESTRATA_INDEX_DEVICE=cuda", DeviceMissing),
        ("query_device", "CINESTRATA_QUERY_DEVICE: device 'cuda' needs a GPU", ModelError),
    ],
)
def test_missing_gpu_is_reported_at_startup(
    tmp_path: Path,
    settings_factory: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    message: str,
    error: type[Exception],
) -> None:
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(error, match=message):
        SearchEngine(settings_factory(tmp_path, **{setting: "cuda"}))
    SearchEngine(settings_factory(tmp_path, **{setting: "auto"}))  # searches run on the CPU


ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(CINESTRATA_\w+)` \| (.+?) \|", DOCS, re.MULTILINE))


def _variables(model: type[BaseModel], prefix: str = "CINESTRATA_") -> Iterator[tuple[str, Any]]:
    """Yield every leaf setting: its variable and its default."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _variables(kind, f"{prefix}{name.upper()}__")
        else:
            yield f"{prefix}{name.upper()}", field.default


VARIABLES = dict(_variables(Settings))


def test_every_setting_is_documented_and_every_documented_setting_exists() -> None:
    assert set(ROWS) == set(VARIABLES)


def test_documented_defaults_are_the_defaults() -> None:
    """A default that is not literal is derived from other settings, or empty."""
    literal = {name: value[1:-1] for name, value in ROWS.items() if re.fullmatch("`[^`]*`", value)}
    assert literal == {name: str(VARIABLES[name]) for name in literal}
    assert all(VARIABLES[name] in (None, "", (), Path()) for name in ROWS.keys() - literal.keys())


def test_files_name_only_existing_variables() -> None:
    files = [ROOT / "README.md", ROOT / ".env.example", ROOT / "docker" / "Dockerfile"]
    for pattern in ("docs/*.md", "docker-compose*.yml", "deploy/**/*.yaml"):
        files += ROOT.glob(pattern)
    for file in files:
        if file.name != "configuration.md":
            named = set(re.findall(r"CINESTRATA_[A-Z_]+[A-Z]", file.read_text(encoding="utf-8")))
            assert named <= {*VARIABLES, *OTHER_VARIABLES}, file.name
