"""Settings: read once from the environment (``CINESTRATA_…``), typed, validated and frozen.

docs/configuration.md documents every setting; a test compares it with these classes. An unknown variable with the
prefix is an error: a misspelled setting would be ignored silently.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from cinestrata_schemas.choice_types import AccessScope
from cinestrata_schemas.model_types import ReadSources
from index.store_options import Device, MilvusIndex, without_password
from media.sources.media_source import SourcePrefix
from media.sources.object_store import missing_package
from models.backbones import Precision

DEFAULT_BACKBONE = "small"  # for a new library
# Methods that a task may select, from the names of their recipes: the methods themselves import torch, and the service
# cannot import the trainer.
METHOD_NAMES: tuple[str, ...] = tuple(
    sorted(
        recipe.name.removesuffix(".yaml")
        for recipe in (resources.files("trainer") / "methods" / "configs").iterdir()
        if recipe.name.endswith(".yaml")
    )
)

_GIB = 1024**3
_POSTGRESQL = re.compile(r"^postgres(ql)?://")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
# Browsers send the origin in lower case, without path or default port.
_ORIGIN = re.compile(r"https?://([a-z0-9-]+(\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(:\d{1,5})?")

# Variables that are not settings but may be in a process's environment.
OTHER_VARIABLES = frozenset(
    {
        "CINESTRATA_URL",  # the command-line option --url
        "CINESTRATA_MEDIA",  # Docker Compose, from .env
        "CINESTRATA_WEIGHTS",
        "CINESTRATA_BIND",
        "CINESTRATA_TEST_MILVUS_URI",  # the test suite
    }
)

# For a service whose name begins with "cinestrata", Kubernetes sets variables like these.
_SERVICE_LINK = re.compile(r"CINESTRATA_(\w+_)?(SERVICE_(HOST|PORT)|PORT(_\d+_(TCP|UDP|SCTP)|=\w+://))")


def _split_list(value: object) -> object:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


# A compose file passes unset variables as empty strings.
_Secret = Annotated[SecretStr | None, AfterValidator(lambda value: value or None)]
_Name = Annotated[str | None, BeforeValidator(lambda value: value or None)]
_Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_list)]


class _Subfolder:
    """A folder below the data folder."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, settings: Settings, owner: type[Settings]) -> Path:
        return settings.data_dir.joinpath(*self._parts)


class MilvusSettings(BaseModel):
    """The Milvus server, ``CINESTRATA_MILVUS__…``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # http://host:19530, or the path of a file that ends in .db (milvus-lite, one process at a time)
    uri: str = Field(default="", repr=False)
    token: _Secret = None  # user:password, or an API key
    # prefix for collection names; libraries that share a server need different ones
    collection: str = Field(default="cinestrata", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")
    # FLAT is exact; measure the recall of others with text queries first
    index: MilvusIndex = "FLAT"


class OidcSettings(BaseModel):
    """The OpenID provider where users sign in, ``CINESTRATA_OIDC__…``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    issuer: str = ""  # https://id.example.com; none: users sign in with a password only
    client_id: str = ""
    client_secret: _Secret = None
    claim: str = "groups"  # claim with the user's roles; a path such as realm_access.roles
    roles: str = ""  # role=scope, separated by commas; * matches every user

    @model_validator(mode="after")
    def _validate_provider(self) -> OidcSettings:
        if not self.issuer:
            return self
        is_local = re.match(r"http://(127\.0\.0\.1|localhost|\[::1\])[:/]", f"{self.issuer}/")
        if not self.issuer.startswith("https://") and not is_local:
            raise ValueError("CINESTRATA_OIDC__ISSUER must be an https address, or http on loopback")
        if not self.client_id:
            raise ValueError(
                "CINESTRATA_OIDC__ISSUER is set but CINESTRATA_OIDC__CLIENT_ID is empty: set it too"
            )
        if not self.role_scopes:
            raise ValueError(
                "CINESTRATA_OIDC__ROLES is empty, so no user has a scope: set it, for example, to "
                "staff=search,operators=admin"
            )
        return self

    @property
    def role_scopes(self) -> dict[str, AccessScope]:
        """Scopes by role; raises ValueError for a malformed entry."""
        scopes: dict[str, AccessScope] = {}
        for entry in filter(None, (part.strip() for part in self.roles.split(","))):
            role, _, scope = entry.rpartition("=")
            if scope not in get_args(AccessScope) or not role.strip():
                raise ValueError(
                    f"CINESTRATA_OIDC__ROLES: {entry!r} is not role=scope with the scope search, ingest or admin"
                )
            scopes[role.strip()] = scope  # type: ignore[assignment]
        return scopes


class Settings(BaseSettings):
    """A process's settings, from environment variables with the prefix ``CINESTRATA_``.

    ``database_url`` and ``redis_url`` are always filled: without a value they point into ``data_dir``.
    """

    model_config = SettingsConfigDict(
        env_prefix="CINESTRATA_",
        env_nested_delimiter="__",
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
        ignored_types=(_Subfolder,),
    )

    # Locations
    data_dir: Path = Path("cinestrata-data")
    media_root: Path = Path()  # root folder for videos named by path; default data_dir/media
    # prefixes of remote videos that tasks may use, such as s3://bucket/videos/; default: none
    sources: _Words = ()
    # prefixes of webhook endpoints besides public https:// servers, such as private+http://hooks.internal:8080/
    webhook_targets: _Words = ()
    # URLs may contain passwords, so repr() omits them.
    # sqlite:///… or postgresql://…; default data_dir/catalog.sqlite3
    database_url: str = Field(default="", repr=False)
    # redis://…, redis+socket://…; default a server in data_dir/run
    redis_url: str = Field(default="", repr=False)

    # HTTP
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    # path such as /cinestrata below which a proxy shows the service
    root_path: str = ""
    api_key: _Secret = None
    # origins such as https://app.example.com whose pages may call the API with a key; default: none
    cors_origins: _Words = ()
    oidc: OidcSettings = OidcSettings()
    mcp: bool = True  # whether agents may use the tools of POST /mcp

    # Vectors: faiss stores them as files in data_dir, milvus on a server. Shards in the other store stay searchable.
    vector_store: Literal["faiss", "milvus"] = "faiss"
    milvus: MilvusSettings = MilvusSettings()
    index_device: Device = "cpu"  # device that scans shards; auto: a GPU if there is one

    # Precision of a text tower in torch: bfloat16 is 1.5 times as fast on hardware that supports it, but shifts a
    # cosine by up to 0.001, depending on the other queries in the forward pass; no tower is then compiled
    query_precision: Precision = "float32"
    query_device: Device = "cpu"  # device for the text tower and clips; auto: a GPU if there is one
    # tasks to search per query: those that can enter the results (auto), all, or a number of the likeliest; see the
    # search planner
    routes: Literal["auto", "all"] | Annotated[int, Field(ge=1)] = "auto"
    max_wait_seconds: float = Field(default=10, gt=0)  # until a search starts; beyond that, 429

    # Learning
    backbone: _Name = None  # default: the library's, or "small" for a new library
    frames: int | None = Field(default=None, ge=1, le=256)  # per video; default: the backbone's
    method: _Name = None  # default: "analytic"
    # length of a moment; longer videos are searched by moments
    moment_seconds: float = Field(default=20, ge=1)
    torch_threads: int | None = Field(default=None, ge=1)
    # processes that train a task together, each with its own GPU if there are GPUs
    training_processes: int = Field(default=1, ge=1, le=64)
    held_out_share: float = Field(default=0.2, ge=0, lt=1)  # share of the test split if none is given
    # what to read from videos: off, or some of file, location, speech and screen, separated by commas
    read: Annotated[ReadSources, BeforeValidator(lambda value: value or "file,speech,screen")] = (
        "file,speech,screen"
    )
    speech_model: _Name = None  # a model of faster-whisper, or its folder; default: the installed one
    lease_seconds: float = Field(default=60, gt=0)  # a worker silent for this long counts as dead
    max_upload_bytes: int = Field(default=4 * _GIB, ge=1)  # per uploaded archive

    # Logs
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    otlp_endpoint: _Name = None  # http://collector:4318, which receives traces; default: none

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str | None) -> str | None:
        if value is not None and value not in METHOD_NAMES:
            raise ValueError(f"unknown method {value!r}; choose one of {', '.join(METHOD_NAMES)}")
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _validate_collector(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not value.startswith(("http://", "https://")):
            raise ValueError(
                f"{value!r} is not the URL of a collector: write, for example, http://collector:4318"
            )
        with suppress(ModuleNotFoundError):  # a parent package is missing
            if find_spec("opentelemetry.exporter.otlp.proto.http"):
                return value
        raise ValueError("traces need OpenTelemetry: pip install 'cinestrata[otel]'")

    @field_validator("root_path")
    @classmethod
    def _validate_root_path(cls, value: str) -> str:
        value = value.rstrip("/")
        if not _ROOT_PATH.fullmatch(value):
            raise ValueError(f"{value!r} is not a path such as /cinestrata")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _validate_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin: write scheme, host and port as a browser does, for example "
                    "https://app.example.com; '*' is not supported"
                )
        return value

    @field_validator("sources")
    @classmethod
    def _validate_sources(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            prefix = SourcePrefix.parse(text)
            if prefix.root is not None and (package := missing_package(prefix.root.scheme)):
                raise ValueError(f"{text!r} needs {package}: pip install 'cinestrata[{prefix.root.scheme}]'")
        return value

    @field_validator("webhook_targets")
    @classmethod
    def _validate_targets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            root = SourcePrefix.parse(text).root
            if root is not None and root.port is None:
                raise ValueError(f"{text!r} does not begin with https:// or private+http(s)://")
        return value

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_variables(cls, values: Any) -> Any:
        problems = [
            problem
            for name, value in sorted(os.environ.items())
            if (problem := explain_unknown_variable(cls, name.upper(), value))
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return values

    @model_validator(mode="before")
    @classmethod
    def _fill_locations(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        data = Path(values.get("data_dir") or cls.model_fields["data_dir"].default).expanduser().resolve()
        media = values.get("media_root")
        url = values.get("database_url") or file_url("sqlite:///", data / "catalog.sqlite3")
        return {
            **values,
            "data_dir": data,
            "media_root": Path(media).expanduser().resolve() if media else data / "media",
            # The driver is psycopg 3; for a plain URL, SQLAlchemy selects another one.
            "database_url": _POSTGRESQL.sub("postgresql+psycopg://", url),
            "redis_url": values.get("redis_url") or file_url("redis+socket://", data / "run" / "redis.sock"),
        }

    @model_validator(mode="after")
    def _validate_milvus(self) -> Settings:
        uri = self.milvus.uri
        if self.vector_store == "milvus" and not uri:
            raise ValueError(
                "CINESTRATA_VECTOR_STORE is milvus but CINESTRATA_MILVUS__URI is empty: set it, for "
                "example, to http://milvus:19530"
            )
        if self.milvus.token and not uri:
            raise ValueError(
                "CINESTRATA_MILVUS__TOKEN is set but CINESTRATA_MILVUS__URI is empty: set it too"
            )
        if not uri:
            return self
        is_file = uri.endswith(".db")
        if not is_file and not uri.startswith(("http://", "https://", "tcp://", "unix:")):
            raise ValueError(
                f"CINESTRATA_MILVUS__URI {without_password(uri)!r} is not an address: use http://host:19530, or a file "
                "that ends in .db"
            )
        if find_spec("pymilvus") is None:
            raise ValueError(
                "CINESTRATA_MILVUS__URI needs the Milvus client: pip install 'cinestrata[milvus]'"
            )
        if is_file and find_spec("milvus_lite") is None:
            raise ValueError(
                "CINESTRATA_MILVUS__URI is a .db file, which needs milvus-lite: pip install milvus-lite"
            )
        return self

    index_dir = _Subfolder("index")  # shards, releases and their manifest
    cache_dir = _Subfolder("cache", "frames")  # sampled frames; may be deleted at any time
    # remote videos while they are processed; may be deleted while no process runs
    sources_dir = _Subfolder("cache", "sources")
    checkpoints_dir = _Subfolder("checkpoints")  # one subfolder per task in training
    thumbnails_dir = _Subfolder("thumbnails")  # <video id>.jpg
    uploads_dir = _Subfolder("media", "uploads")  # uploaded videos, one subfolder per task
    backups_dir = _Subfolder("backups")  # backups that workers write on request
    run_dir = _Subfolder("run")  # running processes' sockets, locks and logs

    @property
    def redis_client_url(self) -> str:
        """The broker's URL as Redis clients expect it (``unix://`` instead of ``redis+socket://``)."""
        return self.redis_url.replace("redis+socket://", "unix://", 1)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Read this process's settings once; raise pydantic.ValidationError, which names each wrong variable."""
    return Settings()


def file_url(prefix: str, path: Path) -> str:
    """Build the URL of a file or socket, whose path may contain ``?``, ``#`` or ``%``; ValueError if not Unicode."""
    return prefix + quote(str(path))


def variable_name(settings_class: type[BaseModel], location: Sequence[str | int]) -> str:
    """Name a setting's environment variable, given its location in pydantic's ``ValidationError``."""
    names: list[str] = []
    model: type[BaseModel] | None = settings_class
    for part in location:
        if model is None or part not in model.model_fields:
            break
        names.append(str(part).upper())
        kind = model.model_fields[part].annotation
        model = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return f"CINESTRATA_{'__'.join(names)}"


def explain_unknown_variable(settings_class: type[BaseModel], name: str, value: str) -> str | None:
    """Explain an unknown variable (in upper case); None for settings and other programs' variables."""
    if not name.startswith("CINESTRATA_") or name in OTHER_VARIABLES:
        return None
    valid = set(_variable_names(settings_class))
    if name in valid or _SERVICE_LINK.match(f"{name}={value}"):
        return None
    # The common prefix would make all names look similar.
    names = sorted(variable.removeprefix("CINESTRATA_") for variable in valid | OTHER_VARIABLES)
    closest = get_close_matches(name.removeprefix("CINESTRATA_"), names, n=1)
    if closest:
        return f"{name} is not a setting: use CINESTRATA_{closest[0]}, or remove it"
    return f"{name} is not a setting: remove it (docs/configuration.md lists the settings)"


def _variable_names(model: type[BaseModel], prefix: str = "CINESTRATA_") -> Iterator[str]:
    """List the variables of a model's fields. A nested model also has one of its own, whose value is JSON."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name.upper()}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _variable_names(field.annotation, f"{prefix}{name.upper()}__")
