"""Settings: read once from the environment (``CINESTRATA_…``), typed, validated and frozen.

docs/configuration.md documents every setting; a test compares it with these classes.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from cinestrata_schemas.choice_types import AccessScope
from index.milvus.milvus_address import MilvusIndex, without_password
from index.scanning.search_options import Device
from media.sources.media_source import SourcePrefix
from media.sources.object_store import missing_package
from models.backbones import Precision
from service.core.environment_variables import explain_unknown_variable

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
# Browsers send the origin in lower case, without path or default port.
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_ORIGIN = re.compile(r"https?://([a-z0-9-]+(\.[a-z0-9-]+)*|\[[0-9a-f:]+\])(:\d{1,5})?")


class MilvusSettings(BaseModel):
    """The Milvus server, ``CINESTRATA_MILVUS__…``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # http://host:19530, or the path of a file that ends in .db (milvus-lite, one process at a time)
    uri: str = Field(default="", repr=False)
    token: SecretStr | None = None  # user:password, or an API key
    # prefix for collection names; libraries that share a server need different ones
    collection: str = Field(default="cinestrata", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")
    # FLAT is exact; measure the recall of others with text queries first
    index: MilvusIndex = "FLAT"

    @field_validator("token")
    @classmethod
    def _drop_empty_token(cls, value: SecretStr | None) -> SecretStr | None:
        return _nonempty_secret(value)


class OidcSettings(BaseModel):
    """The OpenID provider where users sign in, ``CINESTRATA_OIDC__…``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    issuer: str = ""  # https://id.example.com; none: users sign in with a password only
    client_id: str = ""
    client_secret: SecretStr | None = None
    claim: str = "groups"  # claim with the user's roles; a path such as realm_access.roles
    roles: str = ""  # role=scope, separated by commas; * matches every user

    @field_validator("client_secret")
    @classmethod
    def _drop_empty_secret(cls, value: SecretStr | None) -> SecretStr | None:
        return _nonempty_secret(value)

    @model_validator(mode="after")
    def _validate_provider(self) -> OidcSettings:
        if not self.issuer:
            return self
        is_local = re.match(r"http://(127\.0\.0\.1|localhost|\[::1\])[:/]", f"{self.issuer}/")
        if not self.issuer.startswith("https://") and not is_local:
            raise ValueError("CINESTRATA_OIDC__ISSUER is not an https address")
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
        found: dict[str, AccessScope] = {}
        for entry in filter(None, (part.strip() for part in self.roles.split(","))):
            role, _, scope = entry.rpartition("=")
            if scope not in get_args(AccessScope) or not role.strip():
                raise ValueError(
                    f"CINESTRATA_OIDC__ROLES: {entry!r} is not role=scope with the scope search, ingest or admin"
                )
            found[role.strip()] = scope  # type: ignore[assignment]
        return found


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
    )

    # Locations
    data_dir: Path = Path("cinestrata-data")
    media_root: Path = Path()  # root folder for videos named by path; default data_dir/media
    # prefixes of remote videos that tasks may use, such as s3://bucket/videos/; default: none
    sources: Annotated[tuple[str, ...], NoDecode] = ()
    # prefixes of webhook endpoints besides public https:// servers, such as private+http://hooks.internal:8080/
    webhook_targets: Annotated[tuple[str, ...], NoDecode] = ()
    # URLs may contain passwords, so repr() omits them.
    database_url: str = Field(
        default="", repr=False
    )  # sqlite:///… or postgresql://…; default data_dir/catalog.sqlite3
    redis_url: str = Field(
        default="", repr=False
    )  # redis://…, redis+socket://…; default a server in data_dir/run

    # HTTP
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    # path such as /cinestrata below which a proxy shows the service
    root_path: str = ""
    api_key: SecretStr | None = None
    # origins such as https://app.example.com whose pages may call the API with a key; default: none
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
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
    backbone: str | None = None  # default: the library's, or "small" for a new library
    frames: int | None = Field(default=None, ge=1, le=256)  # per video; default: the backbone's
    method: str | None = None  # default: "analytic" with the backbone "small", otherwise "strata"
    moment_seconds: float = Field(
        default=20, ge=1
    )  # length of a moment; longer videos are searched by moments
    torch_threads: int | None = Field(default=None, ge=1)
    # processes that train a task together, each with its own GPU if there are GPUs; methods that draw noise need 1
    training_processes: int = Field(default=1, ge=1, le=64)
    held_out_share: float = Field(default=0.2, ge=0, lt=1)  # share of the test split if none is given
    lease_seconds: float = Field(default=60, gt=0)  # a worker silent for this long counts as dead
    max_upload_bytes: int = Field(default=4 * _GIB, ge=1)  # per uploaded archive

    # Logs
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    otlp_endpoint: str | None = None  # http://collector:4318, which receives traces; default: none

    @field_validator("backbone", "method", "otlp_endpoint", mode="before")
    @classmethod
    def _drop_empty_name(cls, value: object) -> object:
        return value or None  # a compose file passes unset variables as empty strings

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str | None) -> str | None:
        if value is not None and value not in METHOD_NAMES:
            raise ValueError(f"unknown method {value!r}; choose one of {', '.join(METHOD_NAMES)}")
        return value

    @field_validator("api_key")
    @classmethod
    def _drop_empty_key(cls, value: SecretStr | None) -> SecretStr | None:
        return _nonempty_secret(value)

    @field_validator("sources", "cors_origins", "webhook_targets", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("otlp_endpoint")
    @classmethod
    def _validate_collector(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if not value.startswith(("http://", "https://")):
            raise ValueError(
                f"{value!r} is not the URL of a collector: write, for example, http://collector:4318"
            )
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
            raise ValueError("traces need OpenTelemetry: pip install 'cinestrata[otel]'")
        return value

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
                raise ValueError(f"{text!r} is not the address of a web server")
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
        return {
            **values,
            "data_dir": data,
            "media_root": Path(media).expanduser().resolve() if media else data / "media",
            "database_url": _with_driver(
                values.get("database_url") or file_url("sqlite:///", data / "catalog.sqlite3")
            ),
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

    @property
    def index_dir(self) -> Path:
        """Folder with shards, releases and their manifest."""
        return self.data_dir / "index"

    @property
    def cache_dir(self) -> Path:
        """Folder of sampled frames; may be deleted at any time."""
        return self.data_dir / "cache" / "frames"

    @property
    def sources_dir(self) -> Path:
        """Folder of remote videos while they are processed; may be deleted while no process runs."""
        return self.data_dir / "cache" / "sources"

    @property
    def checkpoints_dir(self) -> Path:
        """Folder with one subfolder per task in training."""
        return self.data_dir / "checkpoints"

    @property
    def thumbnails_dir(self) -> Path:
        """Folder of ``<video id>.jpg``."""
        return self.data_dir / "thumbnails"

    @property
    def uploads_dir(self) -> Path:
        """Folder of uploaded videos, one subfolder per task."""
        return self.data_dir / "media" / "uploads"

    @property
    def backups_dir(self) -> Path:
        """Folder of the backups that workers write on request."""
        return self.data_dir / "backups"

    @property
    def run_dir(self) -> Path:
        """Folder of running processes' sockets, locks and logs."""
        return self.data_dir / "run"

    @property
    def redis_client_url(self) -> str:
        """The broker's URL as Redis clients expect it (``unix://`` instead of ``redis+socket://``)."""
        return self.redis_url.replace("redis+socket://", "unix://", 1)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """Read this process's settings; later calls return the same object.

    Raises:
        pydantic.ValidationError: a variable has an invalid value or an unknown name; the error names each.
    """
    return Settings()


def file_url(prefix: str, path: Path) -> str:
    """Build the URL of a file or socket, whose path may contain ``?``, ``#`` or ``%``; ValueError if not Unicode."""
    return prefix + quote(str(path))


def _nonempty_secret(value: SecretStr | None) -> SecretStr | None:
    # An empty variable means "no key": a compose file passes unset variables as empty ones.
    return value if value and value.get_secret_value() else None


def _with_driver(url: str) -> str:
    # The installed driver is psycopg 3, but for a plain postgresql:// URL, SQLAlchemy selects another one.
    for plain in ("postgresql://", "postgres://"):
        if url.startswith(plain):
            return "postgresql+psycopg://" + url.removeprefix(plain)
    return url
